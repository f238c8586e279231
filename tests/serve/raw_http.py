"""HTTP/1.1 by hand: a client that can be slow, cut off or wrong in ways a library would not be."""

from __future__ import annotations

import asyncio


class NoAnswer(Exception):
    """The server closed the connection, or took it apart, before a whole answer."""


class Connection:
    """One connection, for one request at a time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter):
        self._reader, self._writer = reader, writer

    @staticmethod
    async def open(port: int) -> Connection:
        """Connect to this machine, or raise ConnectionError."""
        return Connection(*await asyncio.open_connection("127.0.0.1", port))

    async def send(self, content: bytes) -> None:
        """Write some bytes.

        Raises:
            NoAnswer: if the connection is gone.
        """
        try:
            self._writer.write(content)
            await self._writer.drain()
        except ConnectionError as error:
            raise NoAnswer(str(error)) from None

    async def receive(self) -> tuple[int, dict[str, str], bytes]:
        """Return status, headers (lower case) and body of the next answer.

        Raises:
            NoAnswer: if it does not come whole.
        """
        try:
            head = await self._reader.readuntil(b"\r\n\r\n")
            first, *lines = head.decode("latin-1").split("\r\n")[:-2]
            pairs = (line.split(":", 1) for line in lines)
            headers = {name.lower(): value.strip() for name, value in pairs}
            body = await self._reader.readexactly(int(headers.get("content-length", 0)))
        except (ConnectionError, asyncio.IncompleteReadError) as error:
            raise NoAnswer(str(error)) from None
        return int(first.split()[1]), headers, body

    def close(self) -> None:
        """Go, without waiting for anything."""
        self._writer.close()

    def reset(self) -> None:
        """Go as a client that was killed, or fell off the network, does."""
        self._writer.transport.abort()


def request(
    path: str,
    body: bytes | None = None,
    method: str = "POST",
    length: int | None = None,
    headers: dict[str, str] | None = None,
) -> bytes:
    """Return a request as bytes.

    Args:
        path: with its query.
        body: None sends none.
        method: of HTTP.
        length: what the head says the body is long, where that is not true.
        headers: further ones.
    """
    lines = [f"{method} {path} HTTP/1.1", "host: 127.0.0.1"]
    if body is not None:
        lines.append(f"content-length: {len(body) if length is None else length}")
    headers = {"content-type": "application/json"} | (headers or {})
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return "\r\n".join((*lines, "", "")).encode() + (body or b"")
