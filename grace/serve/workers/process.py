"""An HTTP worker's process, from its start to its end."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from dataclasses import replace

import uvloop

from grace.serve.calls import Observer
from grace.serve.collector import leave_alone_what_stays
from grace.serve.config import ServeConfig
from grace.serve.config_file import make_config
from grace.serve.listening import listen
from grace.serve.logs import json_logs
from grace.serve.security import Tokens, tls_context
from grace.serve.tracing import start_tracing
from grace.serve.workers.app import build_worker_app
from grace.serve.workers.client import connect
from grace.serve.workers.wire import Kind, Unpacker

_log = logging.getLogger(__name__)


def run(port: int, link: int) -> None:
    """Serve until the engine's process says so or is gone.

    Args:
        port: file descriptor of the socket that listens.
        link: of this worker's end of the pair.
    """
    end = socket.socket(fileno=link)
    told = _setup(end)
    config = make_config(told["config"])
    runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
    with socket.socket(fileno=port) as listening, json_logs(config.telemetry.log_level):
        ended_well = runner.run(_serve(config, told["workers"], listening, end))
        if ended_well:
            runner.close()
    if not ended_well:
        # Whatever is still open: nobody can answer it, and an end of the loop in good order would
        # cancel each call, of which its client would be told that the server is broken.
        os._exit(1)


def _setup(end: socket.socket) -> dict:
    unpacker = Unpacker()
    while data := end.recv(1):  # no more: what follows the frame is for who reads next
        for frame in unpacker.feed(data):
            return frame.head
    raise SystemExit(1)  # the engine's process ended before it had said anything


async def _serve(
    config: ServeConfig, workers: int, listening: socket.socket, end: socket.socket
) -> bool:
    """Serve; whether the engine's process was there until the end."""
    engine, http, telemetry = await connect(end), config.http, config.telemetry
    tokens = Tokens.load(http.token_file, "http.token_file") if http.token_file else None
    tracing = start_tracing(telemetry.otlp_endpoint, telemetry.trace_share)
    observer = Observer(telemetry, engine, tracing)
    app = build_worker_app(engine, http, config.batching.timeout_ms, observer, tokens)
    share = replace(http, max_connections=-(-http.max_connections // workers))
    tls = tls_context(http.tls_cert, http.tls_key)
    listener = await listen("http", app, listening, share, tls)
    leave_alone_what_stays()
    engine.tell(Kind.READY)
    ends = [asyncio.create_task(engine.stop.wait()), asyncio.create_task(engine.lost.wait())]
    await asyncio.wait([*ends, listener.failed], return_when="FIRST_COMPLETED")
    if engine.lost.is_set():
        _log.error("the engine's process is gone, so this HTTP worker ends")
        return False
    await listener.stop()
    engine.report()
    if tracing is not None:
        tracing.close()
    return True
