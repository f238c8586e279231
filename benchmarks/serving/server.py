"""An engine behind real HTTP, deployed as `grace serve` does it, watched as requests pass."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import uvloop

from grace.serve import Engine, Ticket
from grace.serve.app import build_app
from grace.serve.collector import leave_alone_what_stays
from grace.serve.config import HttpConfig, IndexConfig, ModelConfig, ServeConfig, TelemetryConfig
from grace.serve.listening import Listener, bind, listen
from grace.serve.metrics import Metrics
from grace.serve.retrieve import PATH
from grace.serve.server import SWITCH_S
from grace.serve.workers import start_workers


@dataclass
class Passage:
    """One request on its way, milliseconds.

    Attributes:
        began: when it was admitted, by `time.monotonic`, in seconds.
        engine: inside the engine, from admission to the answer.
        stages: of its batch, and `queue`, as in `Answer`.
        batch_size: of its batch.
        expanded_ads: SIDs expanded, before the last filter.
    """

    began: float
    engine: float = 0.0
    stages: dict[str, float] = field(default_factory=dict)
    batch_size: int = 0
    expanded_ads: int = 0

    @property
    def pipeline(self) -> float:
        """From the moment its batch was formed to its answer."""
        return self.engine - self.stages["queue"]

    @property
    def around(self) -> float:
        """Stages of its batch that compute nothing: features, filter, text."""
        return self.stages["input"] + self.stages["post"]


class Watch:
    """Notes passages while it is on.

    Args:
        engine: whose `submit_all` is replaced by one that notes.
        metrics: whose `count_call` is, likewise.

    Attributes:
        on: whether it notes.
        passages: requests that were answered.
        calls_ms: how long calls took, from their heads to the last byte of their answers, wherever
            HTTP is spoken; each belongs to some passage.
    """

    def __init__(self, engine: Engine, metrics: Metrics):
        self.on = False
        self.passages: list[Passage] = []
        self.calls_ms: list[float] = []
        self._submit, self._count = engine.submit_all, metrics.count_call
        engine.submit_all, metrics.count_call = self._noting, self._counting

    def clear(self) -> None:
        """Forget what was noted."""
        self.passages.clear()
        self.calls_ms.clear()

    def _noting(self, *arguments: object, **named: object) -> list[Ticket]:
        tickets = self._submit(*arguments, **named)
        if self.on:
            for ticket in tickets:
                ticket.future.add_done_callback(lambda future, of=ticket: self._note(of, future))
        return tickets

    def _note(self, ticket: Ticket, future: Future) -> None:
        if future.cancelled() or future.exception() is not None:
            return
        answer = future.result()
        if answer.error is None:
            self.passages.append(
                Passage(
                    ticket.submitted, (time.monotonic() - ticket.submitted) * 1e3,
                    answer.stages_ms, answer.batch_size, answer.funnel["expanded_ads"],
                )
            )  # fmt: skip

    def _counting(self, protocol: str, route: str, status: str, seconds: float) -> None:
        self._count(protocol, route, status, seconds)
        if self.on and status == "200" and route.endswith(PATH):
            self.calls_ms.append(seconds * 1e3)


@contextmanager
def served(engine: Engine, cores: Sequence[int], workers: int) -> Iterator[tuple[str, Watch]]:
    """Serve an engine as `grace serve` does, on cores of its own.

    Args:
        engine: that is warm.
        cores: for the server and its workers.
        workers: processes for HTTP; 0 serves it from a thread of this one.

    Yields:
        The address, and what notes passages.
    """
    config = ServeConfig(
        index=IndexConfig(directory="i"), model=ModelConfig(directory="m"),
        batching=engine.options, http=HttpConfig(workers=workers),
        telemetry=TelemetryConfig(access_log=0.0),
    )  # fmt: skip
    app = build_app(engine, config)
    metrics = app.state.observer.metrics
    watch = Watch(engine, metrics)
    started, stopped = threading.Event(), None
    switch_s = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_S)
    leave_alone_what_stays()
    pin_threads(cores)  # what they start is there too

    async def start() -> Listener:
        if workers:
            return await start_workers(workers, port, engine, app, metrics, config)
        return await listen("http", app, port, config.http, None)

    async def serve() -> None:
        nonlocal stopped
        stopped = asyncio.Event()
        listener = await start()
        started.set()
        await stopped.wait()
        await listener.stop()

    with bind("http", "127.0.0.1", 0) as port, asyncio.Runner(
        loop_factory=uvloop.new_event_loop
    ) as runner:  # fmt: skip
        url = f"http://127.0.0.1:{port.getsockname()[1]}"
        loop = runner.get_loop()
        thread = threading.Thread(target=runner.run, args=(serve(),), name="http")
        thread.start()
        assert started.wait(120), "the server did not start"
        pin_threads(cores)
        try:
            yield url, watch
        finally:
            loop.call_soon_threadsafe(lambda: stopped.set())
            thread.join()
            engine.drain()
            sys.setswitchinterval(switch_s)


def pin_threads(cores: Sequence[int]) -> None:
    """Keep every thread of this process, and those that they start, to some cores."""
    for thread in Path("/proc/self/task").iterdir():
        try:
            os.sched_setaffinity(int(thread.name), cores)
        except ProcessLookupError:  # it ended meanwhile
            continue
