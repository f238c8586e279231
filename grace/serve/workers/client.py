"""The worker's end of the socket pair, on its event loop: calls out, what came of them back."""

from __future__ import annotations

import asyncio
import itertools
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from grace.errors import RequestError
from grace.serve.faults import Fault
from grace.serve.workers.wire import Frame, Kind, Unpacker, pack, split

REPORT_S = 0.05  # calls that are over are told of at most so much later


@dataclass(frozen=True)
class Told:
    """An answer of the engine, as far as a worker needs to know it.

    Attributes:
        version, batch_size, stages_ms, error: as in `Answer`.
        text: what `Answer.to_json` returns.
    """

    version: str
    batch_size: int
    stages_ms: dict[str, float]
    error: RequestError | None
    text: bytes

    def to_json(self) -> bytes:
        """Return the answer as the engine wrote it."""
        return self.text


class EngineClient(asyncio.Protocol):
    """Asks the engine's process; see `connect`.

    It takes the place of `Metrics` too: what is counted here is counted in the engine's process.

    Attributes:
        stop: set when the engine wants the worker to end.
        lost: set when the engine's process is gone.
    """

    def __init__(self) -> None:
        self.stop, self.lost = asyncio.Event(), asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future] = {}
        self._unpacker = Unpacker()
        self._transport: asyncio.Transport
        self._calls: list[tuple[str, str, float]] = []
        self._refusals: list[str] = []

    def ask(
        self, texts: Sequence[bytes], client: str, request_id: str, timeout_ms: float
    ) -> tuple[int, asyncio.Future]:
        """Ask for answers to requests, all of them or none.

        Returns:
            The call's number, for `cancel`, and a future of a list: for each request what is
            `Told`, or a `Fault`; the future raises a `Fault` where they are not admitted.
        """
        head = {
            "client": client, "request_id": request_id, "timeout_ms": timeout_ms,
            "sizes": [len(text) for text in texts],
        }  # fmt: skip
        return self._send(Kind.ASK, head, texts)

    def call(self, scope: dict, body: bytes) -> tuple[int, asyncio.Future]:
        """Let the engine's application answer.

        Returns:
            The call's number, and a future of (status, headers, body).
        """
        return self._send(Kind.CALL, {"scope": scope}, [body])

    def cancel(self, number: int) -> None:
        """Tell the engine that nobody waits any more."""
        if self._waiting.pop(number, None) is not None:
            self._transport.writelines(pack(Kind.CANCEL, number, None))

    def tell(self, kind: Kind) -> None:
        """Tell the engine something that is about no call."""
        self._transport.writelines(pack(kind, 0, None))

    def count_call(self, protocol: str, route: str, status: str, seconds: float) -> None:
        """Have a call counted that is over; see `Metrics`."""
        if not self._calls and not self._refusals:
            self._loop.call_later(REPORT_S, self.report)
        self._calls.append((route, status, seconds))

    def count_refusal(self, reason: str) -> None:
        """Have a call counted that got no answer; see `Metrics`."""
        self._refusals.append(reason)  # its call was counted just before

    def report(self) -> None:
        """Tell the engine of calls that are over and that it has not been told of."""
        if self._calls or self._refusals:
            head = {"calls": self._calls, "refusals": self._refusals}
            self._transport.writelines(pack(Kind.REPORT, 0, head))
            self._calls, self._refusals = [], []

    # ---- asyncio's side ------------------------------------------------------------------------

    def connection_made(self, transport: Any) -> None:
        """See `asyncio.Protocol`."""
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        """See `asyncio.Protocol`."""
        self.lost.set()

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        for frame in self._unpacker.feed(data):
            if frame.kind is Kind.STOP:
                self.stop.set()
                continue
            waiting = self._waiting.pop(frame.number, None)
            if waiting is None or waiting.done():
                continue  # nobody waits any more
            if frame.kind is Kind.REPLY:
                waiting.set_result((frame.head["status"], frame.head["headers"], frame.body))
            elif "fault" in frame.head:
                waiting.set_exception(Fault(*frame.head["fault"]))
            else:
                waiting.set_result(_outcomes(frame))

    def _send(
        self, kind: Kind, head: object, bodies: Sequence[bytes]
    ) -> tuple[int, asyncio.Future]:
        number, waiting = next(self._numbers), self._loop.create_future()
        self._waiting[number] = waiting
        self._transport.writelines(pack(kind, number, head, bodies))
        return number, waiting


async def connect(end: socket.socket) -> EngineClient:
    """Take over a worker's end of the pair."""
    loop = asyncio.get_running_loop()
    end.setblocking(False)
    _, client = await loop.create_unix_connection(EngineClient, sock=end)
    return client


def _outcomes(frame: Frame) -> list[Told | Fault]:
    parts = frame.head["parts"]
    outcomes: list[Told | Fault] = []
    for part, text in zip(parts, split(frame.body, [p["size"] for p in parts]), strict=True):
        if "fault" in part:
            outcomes.append(Fault(*part["fault"]))
        else:
            error = part["error"] and RequestError(*part["error"])
            outcomes.append(
                Told(part["version"], part["batch_size"], part["stages_ms"], error, bytes(text))
            )
    return outcomes
