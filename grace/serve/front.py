"""What stands before every route: request id, identity, size of the body, headers, one end."""

from __future__ import annotations

import logging

from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from grace.serve.calls import CLIENT_GONE, Call, Observer
from grace.serve.config import HttpConfig
from grace.serve.faults import Fault, fault_of, fault_response
from grace.serve.security import (
    HEADERS,
    HSTS,
    Tokens,
    client_identity,
    is_open,
    take_request_id,
)

_log = logging.getLogger(__name__)


class Front:
    """ASGI middleware; a handler finds its `Call` in `request.state.call`.

    Args:
        app: what it stands before.
        config: limits.
        observer: told when a call is over.
        tokens: where they are required.
    """

    def __init__(self, app: ASGIApp, config: HttpConfig, observer: Observer, tokens: Tokens | None):
        self._app, self._observer, self._tokens = app, observer, tokens
        self._max_body_bytes = config.max_body_bytes
        self._headers = (*HEADERS, HSTS) if config.tls_cert else HEADERS

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one call."""
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1003})
            return
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        peer = scope["client"][0] if scope.get("client") else "unknown"
        client = client_identity(headers.get, peer, self._tokens)
        request_id = take_request_id(headers.get("x-request-id"))
        call = Call("http", request_id, client or peer, headers.get, "other")
        scope.setdefault("state", {})["call"] = call
        status = CLIENT_GONE

        async def reply(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                self._add_headers(message, call.request_id)
            await send(message)

        try:
            if client is None and not is_open(scope["path"]):
                await _unauthorized(call, scope["path"])(scope, receive, reply)
            elif _length(headers.get("content-length")) > self._max_body_bytes:
                await _refuse(call, self._too_large(), scope["path"])(scope, receive, reply)
            else:
                await self._app(scope, self._bounded(receive), reply)
        except ClientDisconnect:
            status, call.reason = CLIENT_GONE, "client_gone"
        except Exception as error:
            _log.exception("unexpected fault", extra={"fields": {"request_id": call.request_id}})
            if status == CLIENT_GONE:  # no reply has begun
                await _refuse(call, fault_of(error), scope["path"])(scope, receive, reply)
        finally:
            if "route" in scope:
                call.name = f"{scope['method']} {scope['route'].path}"
            self._observer.finish(call, status, failed=status == 500)

    def _bounded(self, receive: Receive) -> Receive:
        """Count what comes, as a body in chunks says no length in advance."""
        received = 0

        async def bounded() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > self._max_body_bytes:
                raise self._too_large()
            return message

        return bounded

    def _too_large(self) -> Fault:
        message = f"expected at most {self._max_body_bytes:,} bytes"
        return Fault(413, "body", message, "too_large")

    def _add_headers(self, message: Message, request_id: str) -> None:
        headers = message.setdefault("headers", [])
        there = {name for name, _ in headers}
        headers.extend(header for header in self._headers if header[0] not in there)
        headers.append((b"x-request-id", request_id.encode()))


async def answer_fault(request: Request, error: Exception) -> Response:
    """Turn an exception that a handler raised on purpose into its reply."""
    return _refuse(request.state.call, fault_of(error), request.scope["path"])


def _length(text: str | None) -> int:
    """Return a declared length; what is none is left to the count of what comes."""
    return int(text) if text and text.isdecimal() and len(text) < 20 else 0


def _refuse(call: Call, fault: Fault, path: str) -> Response:
    call.reason = fault.reason
    return fault_response(fault, call.request_id, path)


def _unauthorized(call: Call, path: str) -> Response:
    message = "expected a bearer token that this server knows"
    fault = Fault(401, "authorization", message, "unauthorized", {"www-authenticate": "Bearer"})
    return _refuse(call, fault, path)
