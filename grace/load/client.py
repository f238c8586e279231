"""HTTP/1.1 over kept connections, as little of it as a generator needs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Protocol

import httptools

from grace.load.target import Target


class Wire(Protocol):
    """One connection to a server.

    Attributes:
        usable: whether another request may be sent over it.
    """

    usable: bool

    def send(self, payload: bytes) -> Awaitable[int]:
        """Send one request; gives the status once the answer has come whole."""

    def abort(self) -> None:
        """Close it now."""


class Connection(asyncio.Protocol):
    """A `Wire` over TCP or TLS."""

    def __init__(self) -> None:
        self.usable = True
        self._answer: asyncio.Future[int] | None = None
        self._parser = httptools.HttpResponseParser(self)

    def connection_made(self, transport: asyncio.Transport) -> None:
        """Asyncio says that the connection stands."""
        self._transport = transport

    def send(self, payload: bytes) -> asyncio.Future[int]:
        """See `Wire`.

        Raises:
            ConnectionError: if the server closes before the answer is whole.
            httptools.HttpParserError: if what comes is no HTTP.
        """
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(payload)
        return self._answer

    def abort(self) -> None:
        """See `Wire`."""
        self.usable = False
        self._transport.abort()

    def data_received(self, data: bytes) -> None:
        """Asyncio hands over bytes."""
        if self._answer is None or self._answer.done():
            self.abort()  # nobody asked
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._fail(error)

    def on_message_complete(self) -> None:
        """The parser has seen a whole answer."""
        status = self._parser.get_status_code()
        if status >= 200 and not self._answer.done():  # lower ones announce the answer
            self.usable = self.usable and self._parser.should_keep_alive()
            self._answer.set_result(status)

    def connection_lost(self, error: Exception | None) -> None:
        """Asyncio says that the connection is gone."""
        self._fail(error or ConnectionResetError("closed by the server"))

    def _fail(self, error: Exception) -> None:
        self.abort()
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(error)


class Client:
    """Requests over a limited number of connections; who has waited longest gets the next.

    Args:
        connect: opens one.
        limit: the most connections.
    """

    def __init__(self, connect: Callable[[], Awaitable[Wire]], limit: int):
        self._connect, self._slots = connect, asyncio.Semaphore(limit)
        self._free: list[Wire] = []

    async def exchange(self, payload: bytes, deadline: float) -> str:
        """Send a request and return its outcome, at the latest at a moment of the loop's clock.

        Returns:
            The status of the answer; `timeout`, also where no connection was free in time;
            `connection` where it was refused or broke; `malformed` where the answer was no HTTP.
        """
        try:
            async with asyncio.timeout_at(deadline), self._slots:
                wire = self._idle() or await self._connect()
                try:
                    status = await wire.send(payload)
                except BaseException:  # the answer may still come: not over a wire that is reused
                    wire.abort()
                    raise
                if wire.usable:
                    self._free.append(wire)
                return str(status)
        except TimeoutError:
            return "timeout"
        except OSError:
            return "connection"
        except httptools.HttpParserError:
            return "malformed"

    def close(self) -> None:
        """Close all connections that no request is using."""
        while self._free:
            self._free.pop().abort()

    def _idle(self) -> Wire | None:
        while self._free:
            wire = self._free.pop()  # the last one used: the server has not given it up
            if wire.usable:
                return wire
        return None


def connector(target: Target) -> Callable[[], Awaitable[Connection]]:
    """Return what opens connections to a server."""
    context = target.tls_context()
    name = target.host if target.tls else None

    async def connect() -> Connection:
        _, connection = await asyncio.get_running_loop().create_connection(
            Connection, *target.address, ssl=context, server_hostname=name
        )
        return connection

    return connect
