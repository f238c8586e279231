"""HTTP workers as the engine's process keeps them: started, started again, stopped."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import Future
from dataclasses import asdict
from functools import partial

from starlette.types import ASGIApp

from grace.errors import ConfigError
from grace.serve.config import ServeConfig
from grace.serve.engine import Engine
from grace.serve.listening import Listener, address_of, begin_to_listen
from grace.serve.metrics import Metrics
from grace.serve.workers.link import Link
from grace.serve.workers.wire import Kind

_log = logging.getLogger(__name__)
MOST_BY_DEFAULT = 4
_CORES_EACH = 3  # of a machine, by default; the engine's stages want the others
_PAUSE_S = 0.1, 5.0  # before a worker is started again: at first, and at most
_LASTED_S = 10.0  # a worker that ran so long did not fail for what the next one will meet
_END_S = 5.0  # more than `http.drain_timeout_s`, that a worker may take to end


def worker_count(config: ServeConfig) -> int:
    """Return how many workers to start; 0 serves HTTP in the engine's process.

    Where nothing is configured: none beside a CPU, whose cores the model needs itself.
    """
    if config.http.workers is not None:
        return config.http.workers
    return default_count(config.model.device, len(os.sched_getaffinity(0)))


def default_count(device: str, cores: int) -> int:
    """Return how many workers there are beside a device, on so many cores."""
    return min(cores // _CORES_EACH, MOST_BY_DEFAULT) if device.startswith("cuda") else 0


async def start_workers(
    count: int,
    port: socket.socket,
    engine: Engine,
    app: ASGIApp,
    metrics: Metrics,
    config: ServeConfig,
) -> Listener:
    """Serve HTTP from `count` processes, which share a port; returns when all take connections.

    A worker that dies takes its own connections along. It is missed in the log and in
    `grace_worker_deaths_total`, its requests are cancelled, and another one takes its place;
    connections that nobody has accepted yet wait for that one.

    Args:
        count: 1 at least.
        port: as `bind` returns it; workers inherit it.
        engine: that answers.
        app: the engine's application, for all that workers do not answer themselves.
        metrics: that count for all.
        config: of the whole server.

    Raises:
        ConfigError: if somebody else has begun to listen on the port, or a worker cannot be started
            or ends before it takes connections.
    """
    begin_to_listen("http", port)
    workers = [_Worker(count, port, engine, app, metrics, config) for _ in range(count)]

    async def stop() -> None:
        for worker in workers:
            worker.stop()
        port.close()  # the last one but the workers' own, which they close now
        await asyncio.gather(*(asyncio.to_thread(worker.join) for worker in workers))

    try:
        await asyncio.gather(*(asyncio.wrap_future(worker.ready) for worker in workers))
    except BaseException as error:
        await stop()
        if isinstance(error, (OSError, RuntimeError)):
            raise ConfigError(f"http.workers: {error}") from error
        raise
    return Listener("http", address_of(port, bool(config.http.tls_cert)), stop)


class _Worker:
    """One place for a worker, whose thread keeps a process in it."""

    def __init__(
        self,
        count: int,
        port: socket.socket,
        engine: Engine,
        app: ASGIApp,
        metrics: Metrics,
        config: ServeConfig,
    ):
        self.ready: Future[None] = Future()
        self._count, self._port, self._config, self._metrics = count, port, config, metrics
        self._link_of = partial(
            Link, engine=engine, app=app, loop=asyncio.get_running_loop(), metrics=metrics,
            ready=self._is_ready,
        )  # fmt: skip
        self._stopping = threading.Event()
        self._lock = threading.Lock()  # of what follows: stop and a start may meet
        self._process: subprocess.Popen | None = None
        self._link: Link | None = None
        self._thread = threading.Thread(target=self._keep, name="HTTP worker", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Let the process answer what it has, and end."""
        with self._lock:
            self._stopping.set()
            if self._link is not None:
                self._link.send(Kind.STOP)

    def join(self) -> None:
        """Wait for that, or end it."""
        process = self._process
        self._thread.join(self._config.http.drain_timeout_s + _END_S)
        if self._thread.is_alive() and process is not None:
            _log.error("HTTP worker %d does not end and is killed", process.pid)
            process.kill()
            self._thread.join()

    def _keep(self) -> None:
        # A terminal and some supervisors send these to every process; the engine's says when to
        # end. What this thread blocks is blocked in its processes, from their first moment.
        signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))
        pause_s = _PAUSE_S[0]
        while True:
            began = time.monotonic()
            try:
                with self._lock:
                    if self._stopping.is_set():
                        return
                    process, link = self._start()
            except OSError as error:  # no memory, or no file or process more
                if not self.ready.done():
                    self.ready.set_exception(error)
                    return
                _log.error("an HTTP worker cannot be started: %s", error)
            else:
                link.serve()
                code = _end(process)
                if self._stopping.is_set():
                    return
                if not self.ready.done():
                    why = f"an HTTP worker ended with {code} before it took connections"
                    self.ready.set_exception(RuntimeError(why))
                    return
                _log.error(
                    "HTTP worker %d died with %d; its connections are lost", process.pid, code
                )
                self._metrics.count_worker_death()
            if time.monotonic() - began > _LASTED_S:
                pause_s = _PAUSE_S[0]
            self._stopping.wait(pause_s)
            pause_s = min(2 * pause_s, _PAUSE_S[1])

    def _start(self) -> tuple[subprocess.Popen, Link]:
        # It imports what this process does, and nothing that lies where it happens to be started.
        path = os.pathsep.join(os.path.abspath(folder) for folder in sys.path)
        # A worker computes nothing: no threads of torch's, no GPU.
        more = {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                fds = self._port.fileno(), theirs.fileno()
                self._process = subprocess.Popen(
                    [sys.executable, "-P", "-m", "grace.serve.workers", *map(str, fds)],
                    pass_fds=fds, stdin=subprocess.DEVNULL, env={**os.environ, **more},
                )  # fmt: skip
        except OSError:
            ours.close()
            raise
        self._link = self._link_of(ours)
        self._link.send(Kind.SETUP, {"config": _tables(self._config), "workers": self._count})
        return self._process, self._link

    def _is_ready(self) -> None:
        if not self.ready.done():
            self.ready.set_result(None)


def _end(process: subprocess.Popen) -> int:
    """Return how a process ended whose socket is closed."""
    try:
        return process.wait(_END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()


def _tables(config: ServeConfig) -> dict:
    """Return a configuration as a file would say it, where None stands for what it would not."""
    return {
        section: {name: value for name, value in values.items() if value is not None}
        for section, values in asdict(config).items()
    }
