"""HTTP connections that do not wait for slow clients: uvicorn's, with limits on heads and time."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MAX_HEAD_BYTES = 65_536

# What a chunk may add to a body that counts against nothing: its size in hexadecimal, line ends.
_CHUNK_LINE, _CHUNK_END = 18, 2
_MAX_LEAVING, _LEAVE_S = 64, 1.0
_TOO_MANY = (
    b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: text/plain; charset=utf-8\r\n"
    b"content-length: 20\r\nretry-after: 1\r\nconnection: close\r\n\r\nToo many connections"
)
_FIELD_SIGNS = 4  # ": " and the end of the line


def bounded_protocol(timeout_s: float, max_connections: int) -> type[HttpToolsProtocol]:
    """Return a protocol that closes connections whose messages do not come.

    Args:
        timeout_s: from the connection, or the first byte of a request, to the end of its headers;
            the body may take as long again before the handler's own limit answers 408, and then
            once more, which lets that answer out.
        max_connections: open at once; another one gets 503 and is closed, those open go on.
    """
    leaving: set[Any] = set()  # connections that were refused and may still read why

    class Connection(HttpToolsProtocol):
        _timer: asyncio.TimerHandle | None = None
        _in_head, _head_bytes = True, 0
        _turned = False  # a head or a body ended in the data at hand, so it is not all head
        _fields_bytes = 0  # of the target and of whole header fields, trailers included
        _payload, _framing = 0, 0  # body in the data at hand; chunk extensions and trailers so far

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            if len(self.connections) > max_connections:
                self._refuse()
            else:
                self._expect(timeout_s)

        def connection_lost(self, exc: Exception | None) -> None:
            leaving.discard(self)
            self._expect(None)
            super().connection_lost(exc)

        def data_received(self, data: bytes) -> None:
            if self in leaving or self.transport.is_closing():
                return
            self._turned, self._payload = False, 0
            super().data_received(data)
            if self._turned or self.parser is None or self.transport.is_closing():
                return
            # The parser keeps a head in memory until it is whole, and a trailer likewise.
            if self._in_head:
                self._head_bytes += len(data)
            else:
                self._framing += max(0, len(data) - self._payload)
            if max(self._head_bytes, self._framing) > MAX_HEAD_BYTES:
                self.send_400_response("The headers are too long.")

        def send_400_response(self, msg: str) -> None:
            if not self._in_head and self.cycle is not None and self.cycle.response_started:
                self.transport.close()  # this request has its answer
            else:
                super().send_400_response(msg)

        def on_message_begin(self) -> None:
            super().on_message_begin()
            self._in_head, self._head_bytes = True, 0
            self._fields_bytes, self._framing = 0, 0
            self._expect(timeout_s)

        def on_url(self, url: bytes) -> None:
            self._count_field(len(url))
            super().on_url(url)

        def on_header(self, name: bytes, value: bytes) -> None:
            self._count_field(len(name) + len(value) + _FIELD_SIGNS)
            if self._in_head:  # a trailer is no header: nobody has looked at it
                super().on_header(name, value)

        def on_headers_complete(self) -> None:
            self._in_head, self._turned, self._head_bytes = False, True, 0
            super().on_headers_complete()
            self._expect(2 * timeout_s)

        def on_chunk_header(self) -> None:
            self._payload += _CHUNK_LINE

        def on_chunk_complete(self) -> None:
            self._payload += _CHUNK_END

        def on_body(self, body: bytes) -> None:
            self._payload += len(body)
            super().on_body(body)

        def on_message_complete(self) -> None:
            super().on_message_complete()
            self._expect(None)
            self._in_head, self._head_bytes, self._turned = True, 0, True
            self._framing = 0

        def _refuse(self) -> None:
            self.connections.discard(self)
            self.transport.write(_TOO_MANY)
            if len(leaving) < _MAX_LEAVING and self.transport.can_write_eof():
                # Closed at once, a request on its way would reset it before the client has read.
                leaving.add(self)
                self.transport.write_eof()
                self._expect(_LEAVE_S)
            else:
                self.transport.close()

        def _count_field(self, size: int) -> None:
            """Refuse what came in one read; the parser turns what is raised here into a 400."""
            self._fields_bytes += size
            if self._fields_bytes > MAX_HEAD_BYTES:
                raise ValueError("the headers are too long")

        def _expect(self, seconds: float | None) -> None:
            """Close the connection unless the next part of a message has come by then."""
            if self._timer is not None:
                self._timer.cancel()
            self._timer = seconds and self.loop.call_later(seconds, self._give_up)

        def _give_up(self) -> None:
            if not self.transport.is_closing():
                self.transport.close()

    return Connection
