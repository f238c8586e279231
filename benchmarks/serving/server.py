"""An engine behind real HTTP in this process, watched as its requests pass."""

from __future__ import annotations

import asyncio
import contextvars
import os
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import uvloop
from starlette.types import ASGIApp, Receive, Scope, Send

from grace.serve import Engine, Ticket
from grace.serve.app import build_app
from grace.serve.config import IndexConfig, ModelConfig, ServeConfig, TelemetryConfig
from grace.serve.server import bind, listen


@dataclass
class Passage:
    """One request on its way, milliseconds.

    Attributes:
        began: when it came, by `time.monotonic`, in seconds.
        app: inside the application, from its head to the last byte of its answer.
        engine: inside the engine, from admission to the answer.
        stages: of its batch, and `queue`, as in `Answer`.
        batch_size: of its batch.
        expanded_ads: SIDs expanded, before the last filter.
    """

    began: float
    app: float = 0.0
    engine: float = 0.0
    stages: dict[str, float] = field(default_factory=dict)
    batch_size: int = 0
    expanded_ads: int = 0

    @property
    def pipeline(self) -> float:
        """From the moment its batch was formed to its answer."""
        return self.engine - self.stages["queue"]

    @property
    def overhead(self) -> float:
        """Everything that is neither compute nor waiting for it: HTTP, JSON, features, filter."""
        return self.app - self.engine + self.stages["input"] + self.stages["post"]


class Watch:
    """Notes passages while it is on.

    Args:
        engine: whose `submit` is replaced by one that notes.
    """

    def __init__(self, engine: Engine):
        self.on = False
        self.passages: list[Passage] = []
        self._current = contextvars.ContextVar("passage", default=None)
        self._submit = engine.submit
        engine.submit = self._noting

    def around(self, app: ASGIApp) -> ASGIApp:
        """Return an application that notes how long requests are in it."""

        async def watched(scope: Scope, receive: Receive, send: Send) -> None:
            if not self.on:
                await app(scope, receive, send)
                return
            passage = Passage(time.monotonic())
            self._current.set(passage)
            await app(scope, receive, send)
            passage.app = (time.monotonic() - passage.began) * 1e3
            if passage.batch_size:  # answered
                self.passages.append(passage)

        return watched

    def _noting(self, *arguments: object, **named: object) -> Ticket:
        ticket = self._submit(*arguments, **named)
        passage = self._current.get()
        if passage is not None:
            ticket.future.add_done_callback(lambda future: _note(passage, ticket, future))
        return ticket


def _note(passage: Passage, ticket: Ticket, future: Future) -> None:
    passage.engine = (time.monotonic() - ticket.submitted) * 1e3
    if future.cancelled() or future.exception() is not None:
        return
    answer = future.result()
    if answer.error is None:
        passage.stages, passage.batch_size = answer.stages_ms, answer.batch_size
        passage.expanded_ads = answer.funnel["expanded_ads"]


@contextmanager
def served(engine: Engine, cores: Sequence[int]) -> Iterator[tuple[str, Watch]]:
    """Serve an engine as `grace serve` does, on cores of its own.

    Yields:
        The address, and what notes passages.
    """
    config = ServeConfig(
        index=IndexConfig(directory=""), model=ModelConfig(directory=""),
        batching=engine.options, telemetry=TelemetryConfig(access_log=0.0),
    )  # fmt: skip
    watch = Watch(engine)
    app = watch.around(build_app(engine, config))
    started, stopped = threading.Event(), None

    async def serve() -> None:
        nonlocal stopped
        stopped = asyncio.Event()
        listener = await listen("http", app, port, config.http, None)
        started.set()
        await stopped.wait()
        await listener.stop()

    with bind("http", "127.0.0.1", 0) as port, asyncio.Runner(
        loop_factory=uvloop.new_event_loop
    ) as runner:  # fmt: skip
        loop = runner.get_loop()
        thread = threading.Thread(target=runner.run, args=(serve(),), name="http")
        thread.start()
        assert started.wait(10), "the server did not start"
        pin_threads(cores)
        try:
            yield f"http://127.0.0.1:{port.getsockname()[1]}", watch
        finally:
            loop.call_soon_threadsafe(lambda: stopped.set())
            thread.join()
            engine.drain()


def pin_threads(cores: Sequence[int]) -> None:
    """Keep every thread of this process, and those that they start, to some cores."""
    for thread in Path("/proc/self/task").iterdir():
        try:
            os.sched_setaffinity(int(thread.name), cores)
        except ProcessLookupError:  # it ended meanwhile
            continue
