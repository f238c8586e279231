"""The protocol over HTTP: JSON, and tensors as binary data after it (docs/kserve.md)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Sequence
from typing import Any

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from grace.catalog.values import describe
from grace.errors import RequestError
from grace.serve.answer import Answer
from grace.serve.config import ServeConfig
from grace.serve.engine import Engine
from grace.serve.faults import json_response
from grace.serve.health import why_not_ready
from grace.serve.kserve import infer, metadata
from grace.serve.kserve.codec import Tensor, encode_binary, encode_values
from grace.serve.kserve.http_call import HEADER_LENGTH, decompress, read_call
from grace.serve.limits import late_body
from grace.serve.retrieve import timeout_ms


def routes(engine: Engine, config: ServeConfig) -> list[BaseRoute]:
    """Return the protocol's routes, below `/v2`."""
    name = config.model.name

    async def live(request: Request) -> Response:
        return json_response({"live": True})

    async def ready(request: Request) -> Response:
        is_ready = why_not_ready(engine) is None
        return json_response({"ready": is_ready}, 200 if is_ready else 503)

    async def server(request: Request) -> Response:
        return json_response(metadata.server_metadata())

    async def model(request: Request) -> Response:
        metadata.check_model(engine, name, *_model(request))
        return json_response(metadata.model_metadata(engine, name))

    async def model_ready(request: Request) -> Response:
        metadata.check_model(engine, name, *_model(request))
        is_ready = why_not_ready(engine) is None
        return json_response({"name": name, "ready": is_ready}, 200 if is_ready else 503)

    async def model_config(request: Request) -> Response:
        metadata.check_model(engine, name, *_model(request))
        return json_response(metadata.model_config(engine, name))

    async def infer_model(request: Request) -> Response:
        model_name, version = _model(request)
        metadata.check_model(engine, name, model_name, version)
        body = await _read_body(request, config)
        call = read_call(request.headers.get(HEADER_LENGTH), body, config.http.max_depth)
        infer.check_parameters(call.parameters)
        names = infer.check_outputs(list(call.outputs))
        requests = infer.read_requests(
            call.inputs, call.parameters, config.http.max_requests, config.http.max_depth
        )
        deadline_ms = infer.read_timeout(call.parameters) or timeout_ms(
            request, engine.options.timeout_ms
        )
        about = request.state.call
        answers = await _while_connected(
            request, infer.answer(engine, requests, about.client, deadline_ms, version)
        )
        about.answers.extend(given for given in answers if isinstance(given, Answer))
        head = {"model_name": name, "model_version": infer.common_version(answers)}
        if call.id is not None:
            head["id"] = call.id
        outputs = infer.make_outputs(answers, names, engine.index.num_levels)
        return _respond(head, outputs, [call.outputs.get(n, call.all_binary) for n in names])

    routes = [
        Route("/v2", server),
        Route("/v2/health/live", live),
        Route("/v2/health/ready", ready),
    ]
    for path in ("/v2/models/{model}", "/v2/models/{model}/versions/{version}"):
        routes += [
            Route(path, model),
            Route(f"{path}/ready", model_ready),
            Route(f"{path}/config", model_config),
            Route(f"{path}/infer", infer_model, methods=["POST"]),
        ]
    return routes


def _model(request: Request) -> tuple[str, str]:
    return request.path_params["model"], request.path_params.get("version", "")


async def _read_body(request: Request, config: ServeConfig) -> bytes:
    encoding = request.headers.get("content-encoding", "identity").lower()
    if encoding not in ("identity", "gzip", "deflate"):
        raise RequestError(
            "content-encoding", f"expected gzip or deflate, got {describe(encoding)}"
        )
    try:
        async with asyncio.timeout(config.http.body_timeout_s):
            body = await request.body()
    except TimeoutError:
        raise late_body(config.http.body_timeout_s) from None
    return body if encoding == "identity" else decompress(body, config.http.max_body_bytes)


async def _while_connected(request: Request, work: Awaitable) -> Any:
    """Return what `work` returns; it is cancelled as soon as nobody waits for it.

    Raises:
        ClientDisconnect: if the client goes.
    """
    working = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_disconnected(request))
    try:
        await asyncio.wait((working, gone), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientDisconnect
        return working.result()
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
    # Not orjson: the id is the client's, and may hold what UTF-8 cannot.
    text = json.dumps(head | {"outputs": outputs}).encode()
    if not tail:
        return Response(text, media_type="application/json")
    return Response(
        b"".join([text, *tail]),
        headers={HEADER_LENGTH: str(len(text))},
        media_type="application/octet-stream",
    )
