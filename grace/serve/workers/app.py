"""What a worker serves: `/v1/retrieve` itself, all else through the engine's process."""

from __future__ import annotations

import asyncio
import json

import orjson
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.types import ASGIApp, Receive, Scope, Send

from grace.errors import RequestError
from grace.serve.calls import Observer
from grace.serve.config import HttpConfig
from grace.serve.faults import Fault, fault_of, fault_response
from grace.serve.front import Front, answer_fault
from grace.serve.limits import late_body
from grace.serve.retrieve import PATH, Outcome, disconnected, retrieve_route
from grace.serve.security import Tokens, take_request_id
from grace.serve.ticket import LATE, Expired
from grace.serve.workers.client import EngineClient

# Of a connection and not of a call, or counted anew: the worker's own server says them.
_CONNECTION = {"connection", "content-length", "date", "keep-alive", "transfer-encoding"}
_PASSED_ON = ("method", "path", "scheme", "http_version", "root_path", "client")


def build_worker_app(
    engine: EngineClient,
    config: HttpConfig,
    timeout_ms: float,
    observer: Observer,
    tokens: Tokens | None,
) -> ASGIApp:
    """Return the application of a worker.

    Args:
        engine: that answers.
        config: limits.
        timeout_ms: of a request that names none.
        observer: told of calls to `/v1/retrieve`; of others the engine's own is.
        tokens: where they are required.
    """

    async def ask(
        raws: list[dict], text: bytes | None, request: Request, deadline_ms: float
    ) -> list[Outcome]:
        call = request.state.call
        texts = [_text(raw) for raw in raws] if text is None else [text]
        number, answered = engine.ask(texts, call.client, call.request_id, deadline_ms)
        try:
            await disconnected(request.receive, answered, deadline_ms / 1e3)
            if not answered.done():
                return [fault_of(Expired(LATE))] * len(raws)
            return answered.result()
        finally:
            engine.cancel(number)

    hot = Starlette(
        routes=[retrieve_route(ask, config, timeout_ms)],
        middleware=[Middleware(Front, config=config, observer=observer, tokens=tokens)],
        exception_handlers=dict.fromkeys((Fault, RequestError, HTTPException), answer_fault),
    )

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and (scope["path"] != PATH or scope["method"] != "POST"):
            await _pass_on(engine, config, scope, receive, send)
        else:
            await hot(scope, receive, send)

    return app


async def _pass_on(
    engine: EngineClient, config: HttpConfig, scope: Scope, receive: Receive, send: Send
) -> None:
    """Let the engine's application answer: it counts, logs and limits the call."""
    try:
        async with asyncio.timeout(config.body_timeout_s):
            body = await _body(scope, receive, config.max_body_bytes)
    except ClientDisconnect:
        return
    except TimeoutError:
        fault, request_id = late_body(config.body_timeout_s), take_request_id(None)
        await fault_response(fault, request_id, scope["path"])(scope, receive, send)
        return
    head = {name: scope[name] for name in _PASSED_ON}
    head |= {name: scope[name].decode("latin-1") for name in ("raw_path", "query_string")}
    head["headers"] = [(k.decode("latin-1"), v.decode("latin-1")) for k, v in scope["headers"]]
    engine.report()  # `/metrics` counts what came before it
    number, replied = engine.call(head, body)
    try:
        await disconnected(receive, replied, None)
    except ClientDisconnect:
        return
    finally:
        engine.cancel(number)
    status, headers, content = replied.result()
    kept = [(k.encode("latin-1"), v.encode("latin-1")) for k, v in headers]
    kept = [pair for pair in kept if pair[0].decode("latin-1").lower() not in _CONNECTION]
    kept.append((b"content-length", str(len(content)).encode()))
    await send({"type": "http.response.start", "status": status, "headers": kept})
    await send({"type": "http.response.body", "body": bytes(content)})


async def _body(scope: Scope, receive: Receive, max_bytes: int) -> bytes:
    """Return a body as far as anybody will look at it: a byte more than it may have at most."""
    declared = next((value for name, value in scope["headers"] if name == b"content-length"), b"0")
    if declared.isdigit() and (len(declared) > 18 or int(declared) > max_bytes):
        return b""  # refused by its declared length
    pieces, size, more = [], 0, True
    while more and size <= max_bytes:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        pieces.append(message.get("body", b""))
        size += len(pieces[-1])
        more = message.get("more_body", False)
    return b"".join(pieces)[: max_bytes + 1]


def _text(raw: dict) -> bytes:
    try:
        return orjson.dumps(raw)
    except (TypeError, ValueError):  # text that UTF-8 cannot hold, which the engine will refuse
        return json.dumps(raw).encode()
