"""HTTP connections that do not wait for slow clients: uvicorn's, with limits on heads and time."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MAX_HEAD_BYTES = 65_536


def bounded_protocol(timeout_s: float) -> type[HttpToolsProtocol]:
    """Return a protocol that closes connections whose messages do not come.

    Args:
        timeout_s: from the connection, or the first byte of a request, to the end of its headers;
            the body may take as long again before the handler's own limit answers 408, and then
            once more, which lets that answer out.
    """

    class Connection(HttpToolsProtocol):
        _timer: asyncio.TimerHandle | None = None
        _in_head, _head_bytes = True, 0
        _turned = False  # a head or a body ended in the data at hand, so it is not all head

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._expect(timeout_s)

        def connection_lost(self, exc: Exception | None) -> None:
            self._expect(None)
            super().connection_lost(exc)

        def data_received(self, data: bytes) -> None:
            self._turned = False
            super().data_received(data)
            # The parser keeps a head in memory until it is whole.
            self._head_bytes += 0 if self._turned else len(data)
            if self._in_head and self._head_bytes > MAX_HEAD_BYTES and self.parser is not None:
                self.send_400_response("The headers are too long.")

        def on_message_begin(self) -> None:
            super().on_message_begin()
            self._in_head, self._head_bytes = True, 0
            self._expect(timeout_s)

        def on_headers_complete(self) -> None:
            self._in_head, self._turned = False, True
            super().on_headers_complete()
            self._expect(2 * timeout_s)

        def on_message_complete(self) -> None:
            super().on_message_complete()
            self._expect(None)
            self._in_head, self._head_bytes, self._turned = True, 0, True

        def _expect(self, seconds: float | None) -> None:
            """Close the connection unless the next part of a message has come by then."""
            if self._timer is not None:
                self._timer.cancel()
            self._timer = seconds and self.loop.call_later(seconds, self._give_up)

        def _give_up(self) -> None:
            if not self.transport.is_closing():
                self.transport.close()

    return Connection
