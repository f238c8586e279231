"""The engine's end of one worker: requests in, answers and replies out, on two threads.

The threads block in the kernel, where they hold no interpreter: an answer of a hundred kilobytes
costs the engine's Python a few microseconds.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import socket
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial

from starlette.types import ASGIApp, Message

from grace.retrieve.request import RequestText
from grace.serve.answer import Answer
from grace.serve.engine import Engine, Ticket
from grace.serve.faults import Fault, fault_of
from grace.serve.metrics import Metrics
from grace.serve.workers.wire import Frame, Kind, Unpacker, pack, split

_log = logging.getLogger(__name__)
_READ_BYTES = 1 << 18
_MOST_PIECES = 512  # of one system call; the kernel takes 1,024


class Link:
    """One worker, as the engine's process sees it.

    Args:
        end: of the socket pair; blocking.
        engine: answers `/v1/retrieve`.
        app: answers everything else.
        loop: that runs `app`.
        metrics: of this process, which count the worker's calls too.
        ready: called when the worker takes connections.
    """

    def __init__(
        self,
        end: socket.socket,
        engine: Engine,
        app: ASGIApp,
        loop: asyncio.AbstractEventLoop,
        metrics: Metrics,
        ready: Callable[[], None],
    ):
        self._end, self._engine, self._app, self._loop = end, engine, app, loop
        self._metrics, self._ready = metrics, ready
        self._lock = threading.Lock()  # of the two dicts
        self._asked: dict[int, _Asked] = {}
        self._called: dict[int, asyncio.Event] = {}
        self._out: queue.SimpleQueue[list[bytes] | None] = queue.SimpleQueue()
        self._writer = threading.Thread(target=self._write, name="worker answers", daemon=True)
        self._writer.start()

    def send(self, kind: Kind, head: object = None) -> None:
        """Tell the worker something that is about no call."""
        self._out.put(pack(kind, 0, head))

    def serve(self) -> None:
        """Do what the worker asks until it is gone; then forget what it had asked."""
        unpacker, room = Unpacker(), memoryview(bytearray(_READ_BYTES))
        try:
            while size := self._end.recv_into(room):
                for frame in unpacker.feed(room[:size]):
                    self._take(frame)
        except OSError as error:
            _log.debug("the socket of an HTTP worker failed", exc_info=error)
        finally:
            self._forget()
            self._out.put(None)
            self._writer.join()
            self._end.close()

    def _take(self, frame: Frame) -> None:
        match frame.kind:
            case Kind.ASK:
                self._ask(frame)
            case Kind.CALL:
                gone = asyncio.Event()
                with self._lock:
                    self._called[frame.number] = gone
                asyncio.run_coroutine_threadsafe(self._call(frame, gone), self._loop)
            case Kind.CANCEL:
                self._cancel(frame.number)
            case Kind.REPORT:
                for name, status, seconds in frame.head["calls"]:
                    self._metrics.count_call("http", name, status, seconds)
                for reason in frame.head["refusals"]:
                    self._metrics.count_refusal(reason)
            case Kind.READY:
                self._ready()

    def _ask(self, frame: Frame) -> None:
        head, number = frame.head, frame.number
        texts = [RequestText(text) for text in split(frame.body, head["sizes"])]
        try:
            tickets = self._engine.submit_all(
                texts, head["client"], head["timeout_ms"], as_text=True
            )
        except Exception as error:
            fault = _told(self._fault(error, head["request_id"]))
            self._out.put(pack(Kind.ANSWER, number, {"fault": fault}))
            return
        asked = _Asked(tickets, head["request_id"], len(tickets))
        with self._lock:
            self._asked[number] = asked
        for ticket in tickets:
            ticket.future.add_done_callback(partial(self._settled, number, asked))

    def _settled(self, number: int, asked: _Asked, _: Future) -> None:
        """Answer a call when the last of its requests has its outcome."""
        with self._lock:
            asked.missing -= 1
            if asked.missing or self._asked.pop(number, None) is None:
                return
        parts, texts = [], []
        for ticket in asked.tickets:
            part, text = self._part(ticket.future, asked.request_id)
            parts.append(part)
            texts.append(text)
        asked.tickets.clear()
        self._out.put(pack(Kind.ANSWER, number, {"parts": parts}, texts))

    def _part(self, future: Future, request_id: str) -> tuple[dict, bytes]:
        error = future.exception()
        if error is not None:
            return {"size": 0, "fault": _told(self._fault(error, request_id))}, b""
        answer: Answer = future.result()
        text = answer.to_json()
        wrong = answer.error and [answer.error.field, answer.error.message]
        return {
            "size": len(text), "version": answer.version, "batch_size": answer.batch_size,
            "stages_ms": answer.stages_ms, "error": wrong,
        }, text  # fmt: skip

    def _fault(self, error: BaseException, request_id: str) -> Fault:
        fault = fault_of(error)
        if fault.status == 500:
            fields = {"request_id": request_id}
            _log.error("unexpected fault", exc_info=error, extra={"fields": fields})
        return fault

    async def _call(self, frame: Frame, gone: asyncio.Event) -> None:
        """Let the application answer a call, as a server would."""
        scope = dict(frame.head["scope"])
        scope["headers"] = [(k.encode("latin-1"), v.encode("latin-1")) for k, v in scope["headers"]]
        for name in ("raw_path", "query_string"):
            scope[name] = scope[name].encode("latin-1")
        scope["client"] = tuple(scope["client"]) if scope["client"] else None
        scope |= {"type": "http", "asgi": {"version": "3.0", "spec_version": "2.3"}}
        body: bytes | None = bytes(frame.body)
        status, headers, pieces = 500, [], []

        async def receive() -> Message:
            nonlocal body
            if body is None:
                await gone.wait()
                return {"type": "http.disconnect"}
            whole, body = body, None
            return {"type": "http.request", "body": whole, "more_body": False}

        async def send(message: Message) -> None:
            nonlocal status, headers
            if message["type"] == "http.response.start":
                status, headers = message["status"], message["headers"]
            else:
                pieces.append(bytes(message.get("body", b"")))

        try:
            await self._app(scope, receive, send)
        except Exception:
            _log.exception("unexpected fault")
        with self._lock:
            wanted = self._called.pop(frame.number, None) is not None
        if wanted:
            names = [(k.decode("latin-1"), v.decode("latin-1")) for k, v in headers]
            head = {"status": status, "headers": names}
            self._out.put(pack(Kind.REPLY, frame.number, head, pieces))

    def _cancel(self, number: int) -> None:
        with self._lock:
            asked, gone = self._asked.pop(number, None), self._called.pop(number, None)
        if asked is not None:
            for ticket in asked.tickets:
                if not ticket.future.done():
                    ticket.cancel()
            asked.tickets.clear()
        if gone is not None:
            self._loop.call_soon_threadsafe(gone.set)

    def _forget(self) -> None:
        with self._lock:
            numbers = [*self._asked, *self._called]
        for number in numbers:
            self._cancel(number)

    def _write(self) -> None:
        pieces: list[bytes] | None = []
        try:
            while (pieces := self._out.get()) is not None:
                while len(pieces) < _MOST_PIECES and not self._out.empty():
                    following = self._out.get()
                    if following is None:
                        return
                    pieces += following
                send_all(self._end, pieces)
        except OSError as error:  # the reader finds out as well
            _log.debug("the socket of an HTTP worker failed", exc_info=error)
            while self._out.get() is not None:
                continue


class _Asked:
    """Requests of one call that are under way.

    Their futures hold it: `tickets` is emptied at the end, or each would be a circle that keeps its
    answer until the garbage collector comes, which `leave_alone_what_stays` made rare.
    """

    __slots__ = ("missing", "request_id", "tickets")

    def __init__(self, tickets: list[Ticket], request_id: str, missing: int):
        self.tickets, self.request_id, self.missing = tickets, request_id, missing


def send_all(end: socket.socket, pieces: Sequence[bytes]) -> None:
    """Send pieces of memory as they lie, however much the kernel takes at a time."""
    left = [memoryview(piece) for piece in pieces if piece]
    while left:
        sent = end.sendmsg(left[:_MOST_PIECES])
        while left and sent >= len(left[0]):
            sent -= len(left.pop(0))
        if sent:
            left[0] = left[0][sent:]


def _told(fault: Fault) -> list:
    return [fault.status, fault.field, str(fault), fault.reason, fault.headers]
