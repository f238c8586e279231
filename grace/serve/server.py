"""From a configuration to a process that serves: checks, ports, engine, signals, a clean end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import torch
import uvloop

from grace.decode import BeamPlan, check_device
from grace.errors import ConfigError
from grace.index.history import CURRENT
from grace.serve.admin import build_admin_app
from grace.serve.app import build_app
from grace.serve.collector import leave_alone_what_stays
from grace.serve.config import ServeConfig
from grace.serve.engine import Engine
from grace.serve.kserve.grpc import start_server
from grace.serve.listening import Listener, bind, listen
from grace.serve.logs import json_logs
from grace.serve.security import Tokens, is_loopback, tls_context
from grace.serve.tracing import start_tracing
from grace.serve.workers import start_workers, worker_count

_log = logging.getLogger(__name__)

SWITCH_S = 5e-4
"""Between two threads that want the interpreter; Python's own 5 ms last as long as a search."""


def serve(config: ServeConfig, announce: Callable[[str], None]) -> bool:
    """Serve until SIGTERM or SIGINT; a second one ends at once.

    Args:
        config: checked here against this machine: files, device, ports.
        announce: told the addresses, once everything is ready.

    Returns:
        Whether every admitted request was answered before the end.

    Raises:
        ConfigError: naming the key, before anything is loaded; a port that is taken is one.
        IndexFormatError, ModelError: as `Engine` raises them.
    """
    check_machine(config)
    tls = tls_context(config.http.tls_cert, config.http.tls_key)
    tokens = None
    if config.http.token_file:
        tokens = Tokens.load(config.http.token_file, "http.token_file")
    admin = config.admin
    admin_tokens = None
    if admin.token_file:
        admin_tokens = Tokens.load(admin.token_file, "admin.token_file")
    tracing = start_tracing(config.telemetry.otlp_endpoint, config.telemetry.trace_share)
    with contextlib.ExitStack() as stack:
        port = stack.enter_context(bind("http", config.http.host, config.http.port))
        if config.grpc.port:  # gRPC binds by itself, and only once the engine is there
            bind("grpc", config.http.host, config.grpc.port).close()
        if admin.port:
            admin_port = stack.enter_context(bind("admin", admin.host, admin.port))
        stack.enter_context(json_logs(config.telemetry.log_level))
        if tracing is not None:
            stack.callback(tracing.close)
        if tokens is None and not is_loopback(config.http.host):
            _log.warning("http.host %s can be reached from other machines, and there is no "
                         "http.token_file: anybody may ask", config.http.host)  # fmt: skip
        # The stages and the event loop are threads of one interpreter: whoever waits for it waits
        # for no longer than this.
        sys.setswitchinterval(SWITCH_S)
        engine = make_engine(config)
        app = build_app(engine, config, tracing, tokens)
        leave_alone_what_stays()

        async def start_http() -> Listener:
            workers = worker_count(config)
            if workers == 0:
                return await listen("http", app, port, config.http, tls)
            metrics = app.state.observer.metrics
            return await start_workers(workers, port, engine, app, metrics, config)

        async def start_grpc() -> Listener:
            server = await start_server(engine, config, app.state.observer, tokens)
            address = f"{config.http.host}:{config.grpc.port}"
            return Listener("grpc", address, lambda: server.stop(config.http.drain_timeout_s))

        async def start_admin() -> Listener:
            admin_app = build_admin_app(engine, config, admin_tokens)
            # On loopback nobody listens in, and a certificate names the public host.
            secured = None if is_loopback(admin.host) else tls
            return await listen("admin", admin_app, admin_port, config.http, secured)

        starts: list[Callable[[], Awaitable[Listener]]] = [start_http]
        if config.grpc.port:
            starts.append(start_grpc)
        if admin.port:
            starts.append(start_admin)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(_run(engine, config, starts, announce))


def check_machine(config: ServeConfig) -> None:
    """Check that what a configuration names is here.

    Raises:
        ConfigError: naming the key.
    """
    for key, directory, inside in (
        ("index.directory", config.index.directory, CURRENT),
        ("model.directory", config.model.directory, "config.json"),
    ):
        if not (Path(directory) / inside).is_file():
            raise ConfigError(f"{key}: {directory} holds no {inside}")
    try:
        check_device(config.model.device)
    except ConfigError as error:
        raise ConfigError(f"model.device: {error}") from None
    timeline = config.telemetry.timeline
    if timeline and not Path(timeline).parent.is_dir():
        raise ConfigError(f"telemetry.timeline: the folder of {timeline} does not exist")


def make_engine(config: ServeConfig) -> Engine:
    """Open the index and load the model that a configuration names.

    Raises:
        IndexFormatError, ModelError, ConfigError: as `Engine` raises them.
    """
    model = config.model
    plan = None
    if model.plan is not None:
        plan = BeamPlan(model.plan, model.num_sids or model.plan[-1])
    try:
        return Engine(
            config.index.directory, model.directory, plan, config.batching, matching=model.matching,
            device=model.device, top_k=model.top_k, precision=model.precision,
            table_bytes=model.table_bytes, timeline=config.telemetry.timeline or None,
        )  # fmt: skip
    except torch.OutOfMemoryError as error:
        why = f"{model.device} has too little memory: {str(error).splitlines()[0]}"
        raise ConfigError(f"model.device: {why}") from None


async def _run(
    engine: Engine,
    config: ServeConfig,
    starts: list[Callable[[], Awaitable[Listener]]],
    announce: Callable[[str], None],
) -> bool:
    loop, stopped = asyncio.get_running_loop(), asyncio.Event()
    signals = (signal.SIGTERM, signal.SIGINT)
    for number in signals:
        loop.add_signal_handler(number, stopped.set)
    listeners = [await start() for start in starts]
    announce(_greeting(engine, config, listeners))
    waits = [asyncio.create_task(stopped.wait())]
    waits += [listener.failed for listener in listeners if listener.failed is not None]
    await asyncio.wait(waits, return_when="FIRST_COMPLETED")
    for number in signals:
        loop.remove_signal_handler(number)  # a second one ends the process
    _log.info("going down: no new requests, answers for those admitted")
    # The engine first: from now on the server says that it is not ready.
    drained = loop.run_in_executor(None, engine.drain, config.http.drain_timeout_s)
    await asyncio.gather(*(listener.stop() for listener in listeners))
    complete = await drained
    _log.log(
        logging.INFO if complete else logging.ERROR,
        "down: every admitted request was answered" if complete else "down: some requests were not "
        f"answered within http.drain_timeout_s, {config.http.drain_timeout_s:g} s",
    )  # fmt: skip
    return complete


def _greeting(engine: Engine, config: ServeConfig, listeners: list[Listener]) -> str:
    index = engine.index
    lines = [
        f"version {index.version} of {config.index.directory}: {index.num_ads:,} ads; "
        f"{config.model.directory} on {config.model.device}, matching {config.model.matching}"
    ]
    lines += [f"{listener.name}  {listener.address}" for listener in listeners]
    return "\n".join(lines)
