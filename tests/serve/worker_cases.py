"""An engine served by HTTP workers from a thread of the test's process."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path

from grace.serve import Engine
from grace.serve.app import build_app
from grace.serve.config import ServeConfig
from grace.serve.listening import bind
from grace.serve.security import Tokens
from grace.serve.workers import start_workers


@contextmanager
def worked(engine: Engine, config: ServeConfig) -> Iterator[int]:
    """Serve as `grace serve` does with `http.workers`; gives the port."""
    file = config.http.token_file
    app = build_app(engine, config, tokens=Tokens.load(file, "file") if file else None)
    metrics = app.state.observer.metrics
    port, stop, ready = bind("http", "127.0.0.1", 0), threading.Event(), threading.Event()
    number = port.getsockname()[1]

    async def run() -> None:
        listener = await start_workers(config.http.workers, port, engine, app, metrics, config)
        ready.set()
        await asyncio.to_thread(stop.wait)
        await listener.stop()

    thread = threading.Thread(target=asyncio.run, args=(run(),))
    thread.start()
    assert ready.wait(60)
    try:
        yield number
    finally:
        stop.set()
        thread.join(60)
        assert not thread.is_alive()


def exchange(
    port: int, method: str, path: str, body: bytes | None = None, headers: dict | None = None
) -> tuple[int, dict, bytes]:
    """One call on a connection of its own: status, headers but the date, body."""
    connection = HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request(method, path, body, headers or {})
        response = connection.getresponse()
        content = response.read()
        told = {name.lower(): value for name, value in response.getheaders()}
        told.pop("date", None)
        return response.status, told, content
    finally:
        connection.close()


def await_that(condition: Callable[[], bool]) -> None:
    """Wait until something is so."""
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def children() -> list[int]:
    """Processes of HTTP workers that this process has started."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((folder / "stat").read_text().rsplit(")", 1)[1].split()[1])
            words = (folder / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if parent == os.getpid() and b"grace.serve.workers" in words:
            found.append(int(folder.name))
    return found
