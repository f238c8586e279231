"""The protocol over HTTP: JSON, and tensors as binary data after it (docs/kserve.md)."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import orjson
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from grace.catalog.values import describe
from grace.serve import Engine
from grace.serve.kserve import infer, metadata
from grace.serve.kserve.codec import InvalidInput, Tensor, encode_binary, encode_values
from grace.serve.kserve.http_call import HEADER_LENGTH, decompress, read_call
from grace.serve.kserve.status import (
    Failure,
    TooLarge,
    Unauthenticated,
    Unavailable,
    describe_failure,
)

_CLIENT_GONE = 499

Authorize = Callable[[str | None], str | None]


def routes(engine: Engine, config: Any, authorize: Authorize | None = None) -> list[BaseRoute]:
    """Return the protocol's routes, below `/v2`.

    Args:
        engine: which answers.
        config: a `ServeConfig`: `model.name`, `http.max_body_bytes` and `http.max_depth` are read.
        authorize: `Authorization` header → the client's name, or None to refuse; without it
            everyone may ask. Health is open to all.
    """
    name = config.model.name

    async def live(request: Request) -> Response:
        return JSONResponse({"live": True})

    async def ready(request: Request) -> Response:
        is_ready = metadata.is_ready(engine)
        return JSONResponse({"ready": is_ready}, 200 if is_ready else 503)

    async def model_ready(request: Request) -> Response:
        metadata.check_model(engine, name, *_model(request))
        if not metadata.is_ready(engine):
            raise Unavailable("the server is going down")
        return JSONResponse({"name": name, "ready": True})

    async def server(request: Request) -> Response:
        return JSONResponse(metadata.server_metadata())

    async def model(request: Request) -> Response:
        _client(request, authorize)
        metadata.check_model(engine, name, *_model(request))
        return JSONResponse(metadata.model_metadata(engine, name))

    async def model_config(request: Request) -> Response:
        _client(request, authorize)
        metadata.check_model(engine, name, *_model(request))
        return JSONResponse(metadata.model_config(engine, name))

    async def infer_model(request: Request) -> Response:
        client = _client(request, authorize)
        model_name, version = _model(request)
        metadata.check_model(engine, name, model_name, version)
        body = await _read_body(request, config.http.max_body_bytes)
        call = read_call(request.headers.get(HEADER_LENGTH), body, config.http.max_depth)
        infer.check_parameters(call.parameters)
        names = infer.check_outputs(list(call.outputs))
        timeout_ms = infer.read_timeout(call.parameters) or _timeout_header(request)
        requests = infer.read_requests(
            call.inputs, call.parameters, engine.options.max_admitted, config.http.max_depth
        )
        answers = await _while_connected(
            request, infer.answer(engine, requests, client, timeout_ms, version)
        )
        if answers is None:
            return Response(status_code=_CLIENT_GONE)
        head = {"model_name": name, "model_version": infer.common_version(answers)}
        if call.id is not None:
            head["id"] = call.id
        outputs = infer.make_outputs(answers, names, engine.index.num_levels)
        return _respond(head, outputs, [call.outputs.get(n, call.all_binary) for n in names])

    endpoints: dict[str, tuple[str, Callable[[Request], Awaitable[Response]]]] = {
        "/v2": ("GET", server),
        "/v2/health/live": ("GET", live),
        "/v2/health/ready": ("GET", ready),
    }
    for path in ("/v2/models/{model}", "/v2/models/{model}/versions/{version}"):
        endpoints[path] = ("GET", model)
        endpoints[f"{path}/ready"] = ("GET", model_ready)
        endpoints[f"{path}/config"] = ("GET", model_config)
        endpoints[f"{path}/infer"] = ("POST", infer_model)
    return [
        Route(path, _telling(handler), methods=[method])
        for path, (method, handler) in endpoints.items()
    ]


def _telling(handler: Callable[[Request], Awaitable[Response]]) -> Callable:
    @functools.wraps(handler)
    async def tell(request: Request) -> Response:
        try:
            return await handler(request)
        except ClientDisconnect:
            return Response(status_code=_CLIENT_GONE)  # in the middle of its body
        except Exception as error:
            return _fail(describe_failure(error))

    return tell


def _fail(failure: Failure) -> Response:
    headers = {}
    if failure.retry_after_s is not None:
        # The header counts whole seconds; 0 would ask for a storm.
        headers["Retry-After"] = str(max(1, round(failure.retry_after_s)))
    if failure.http == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return JSONResponse({"error": failure.message}, failure.http, headers)


def _model(request: Request) -> tuple[str, str]:
    return request.path_params["model"], request.path_params.get("version", "")


def _client(request: Request, authorize: Authorize | None) -> str:
    if authorize is not None:
        client = authorize(request.headers.get("authorization"))
        if client is None:
            raise Unauthenticated("a known bearer token is needed")
        return client
    peer = request.client.host if request.client else ""
    return request.headers.get("x-client-id") or peer


def _timeout_header(request: Request) -> float | None:
    text = request.headers.get("x-timeout-ms")
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and 0 < len(text) <= 9):
        raise InvalidInput(f"header x-timeout-ms must be whole milliseconds, got {describe(text)}")
    return float(text) or None


async def _read_body(request: Request, most: int) -> bytes:
    encoding = request.headers.get("content-encoding", "identity")
    if encoding not in ("identity", "gzip", "deflate"):
        raise InvalidInput(f"content-encoding must be gzip or deflate, got {describe(encoding)}")
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > most:
            raise TooLarge(f"the body is larger than {most} bytes")
        parts.append(part)
    body = b"".join(parts)
    return body if encoding == "identity" else decompress(body, most)


async def _while_connected(request: Request, work: Awaitable) -> Any:
    """Return what `work` returns, or None as soon as the client is gone; work is cancelled then."""
    working = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_disconnected(request))
    try:
        await asyncio.wait((working, gone), return_when=asyncio.FIRST_COMPLETED)
        return await working if working.done() else None
    finally:
        working.cancel()
        gone.cancel()


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _respond(head: dict, tensors: Sequence[Tensor], binary: Sequence[bool]) -> Response:
    outputs, tail = [], []
    for tensor, as_binary in zip(tensors, binary, strict=True):
        output: dict = {
            "name": tensor.name, "datatype": tensor.datatype, "shape": list(tensor.shape),
        }  # fmt: skip
        if as_binary:
            tail.append(encode_binary(tensor))
            output["parameters"] = {"binary_data_size": len(tail[-1])}
        else:
            output["data"] = encode_values(tensor)
        outputs.append(output)
    text = orjson.dumps(head | {"outputs": outputs})
    if not tail:
        return Response(text, media_type="application/json")
    return Response(
        b"".join([text, *tail]),
        headers={HEADER_LENGTH: str(len(text))},
        media_type="application/octet-stream",
    )
