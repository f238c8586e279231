"""Ports: bound, listened on, served by uvicorn with our limits, stopped."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import uvicorn
from starlette.types import ASGIApp

from grace.catalog.values import describe
from grace.errors import ConfigError
from grace.serve.config import HttpConfig
from grace.serve.connection import bounded_protocol

BACKLOG = 2048
"""Connections that wait to be accepted."""


@dataclass(frozen=True)
class Listener:
    """A port that is served.

    Attributes:
        name: of the protocol.
        address: for people.
        stop: takes no new connections, and returns when those open have their answers.
        failed: ends only if the port is no longer served though nobody stopped it.
    """

    name: str
    address: str
    stop: Callable[[], Awaitable[object]]
    failed: asyncio.Future | None = None


def bind(section: str, host: str, port: int) -> socket.socket:
    """Return a socket bound to a port; until somebody listens, connections to it are refused.

    Args:
        section: of the configuration, for messages.
        host: a name or an address.
        port: 0 takes a free one.

    Raises:
        ConfigError: if the host is none of this machine's, or the port is taken.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except OSError as error:
        why = f"{host!r} is no address: {error.strerror}"
        raise ConfigError(f"{_host_key(section)}: {why}") from None
    except UnicodeError:  # from IDNA: an empty label, or one that is too long
        raise ConfigError(f"{_host_key(section)}: {describe(host)} is no host name") from None
    bound = socket.socket(family, kind, protocol)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind(address)
    except OSError as error:
        bound.close()
        raise _port_fault(section, host, port, error) from None
    return bound


def begin_to_listen(section: str, port: socket.socket) -> None:
    """Let connections to a bound socket wait for somebody who accepts them.

    Raises:
        ConfigError: if somebody else has begun to listen on the port.
    """
    try:
        port.listen(BACKLOG)
    except OSError as error:
        raise _port_fault(section, *port.getsockname()[:2], error) from None


def address_of(port: socket.socket, tls: bool) -> str:
    """Return a bound socket's URL, for people."""
    host, number = port.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    return f"http{'s' if tls else ''}://{shown}:{number}"


async def listen(
    name: str, app: ASGIApp, port: socket.socket, http: HttpConfig, tls: ssl.SSLContext | None
) -> Listener:
    """Serve an ASGI application on a bound socket.

    Args:
        name: of the port, and its section of the configuration.
        app: the application.
        port: as `bind` returns it.
        http: limits.
        tls: None speaks plain HTTP.

    Raises:
        ConfigError: if somebody else has begun to listen on the port.
    """
    server = _Server(
        uvicorn.Config(
            app, http=bounded_protocol(http.body_timeout_s, http.max_connections), ws="none",
            lifespan="off", log_config=None, access_log=False, proxy_headers=False,
            server_header=False, timeout_graceful_shutdown=None,
            ssl_context_factory=None if tls is None else lambda *_: tls,
        )
    )  # fmt: skip
    address = address_of(port, tls is not None)
    begin_to_listen(name, port)
    task = asyncio.create_task(server.serve([port]))
    while not server.started and not task.done():
        await asyncio.sleep(0.005)
    if task.done():
        task.result()

    async def stop() -> None:
        server.should_exit = True
        try:
            await asyncio.wait_for(asyncio.shield(task), http.drain_timeout_s)
        except TimeoutError:
            server.force_exit = True
            await task

    return Listener(name, address, stop, task)


class _Server(uvicorn.Server):
    """uvicorn's, which leaves signals to `serve`."""

    def capture_signals(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()


def _port_fault(section: str, host: str, port: int, error: OSError) -> ConfigError:
    if error.errno == errno.EADDRINUSE:
        return ConfigError(f"{section}.port: {host}:{port} is taken by another process")
    if error.errno == errno.EADDRNOTAVAIL:
        return ConfigError(f"{_host_key(section)}: {host} is no address of this machine")
    return ConfigError(f"{section}.port: cannot listen on {host}:{port}: {error.strerror}")


def _host_key(section: str) -> str:
    return "admin.host" if section == "admin" else "http.host"  # gRPC listens on HTTP's
