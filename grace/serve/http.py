"""`/v1`: requests in as JSON, answers out as the engine wrote them; health and metadata."""

from __future__ import annotations

import asyncio
import json
import logging
import re

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import Receive

from grace.catalog.values import describe
from grace.errors import RequestError
from grace.serve.answer import Answer
from grace.serve.calls import Call
from grace.serve.config import ServeConfig
from grace.serve.engine import Engine, Expired, Ticket
from grace.serve.faults import fault_of, json_response
from grace.serve.health import why_not_ready
from grace.serve.limits import read_json

MAX_TIMEOUT_MS = 600_000

_DECIMAL = re.compile(r"[0-9]+(\.[0-9]+)?")
_log = logging.getLogger(__name__)


def routes(engine: Engine, config: ServeConfig) -> list[BaseRoute]:
    """Return the routes under `/v1`."""

    async def retrieve(request: Request) -> Response:
        body = await read_json(request, config.http.max_depth, config.http.body_timeout_s)
        deadline_ms = timeout_ms(request, engine)
        if isinstance(body, dict) and "requests" in body:
            raws = _many(body, config.http.max_requests)
            outcomes = await _ask(engine, raws, request, deadline_ms)
            call = request.state.call
            parts = [_part(call, *pair) for pair in zip(raws, outcomes, strict=True)]
            return _json(b'{"responses":[' + b",".join(parts) + b"]}")
        (outcome,) = await _ask(engine, [_one("request", body)], request, deadline_ms)
        if isinstance(outcome, BaseException):
            raise outcome
        if outcome.error is not None:
            raise outcome.error
        return _json(outcome.to_json())

    async def live(request: Request) -> Response:
        return json_response({"live": True})

    async def ready(request: Request) -> Response:
        reason = why_not_ready(engine)
        if reason is None:
            return json_response({"ready": True})
        return json_response({"ready": False, "reason": reason}, 503)

    async def model(request: Request) -> Response:
        return json_response(metadata(engine, config))

    return [
        Route("/v1/retrieve", retrieve, methods=["POST"]),
        Route("/v1/health/live", live),
        Route("/v1/health/ready", ready),
        Route("/v1/model", model),
    ]


def metadata(engine: Engine, config: ServeConfig) -> dict:
    """Return what `GET /v1/model` tells: the catalogue's shape, the search, the version."""
    retriever = engine.retriever
    index = retriever.index
    return {
        "version": str(index.version),
        "ads": index.num_ads,
        "sids": index.num_sids,
        "levels": index.num_levels,
        "vocab_size": index.vocab_size,
        "attributes": index.schema.to_dict()["attributes"],
        "plan": {"widths": list(retriever.plan.widths), "num_sids": retriever.plan.num_sids},
        "matching": retriever.matching,
        "top_k": retriever.top_k,
        "device": config.model.device,
        "precision": config.model.precision,
        "limits": {
            "body_bytes": config.http.max_body_bytes,
            "depth": config.http.max_depth,
            "requests": config.http.max_requests,
            "timeout_ms": engine.options.timeout_ms,
        },
    }


async def _ask(
    engine: Engine, raws: list[dict], request: Request, deadline_ms: float
) -> list[Answer | BaseException]:
    """Admit all requests or none, wait for their answers, and stop as soon as nobody waits.

    Raises:
        Overloaded, Draining: if they are not admitted.
        ClientDisconnect: if the client goes.
    """
    call = request.state.call
    tickets = engine.submit_all(raws, call.client, deadline_ms, as_text=True)
    try:
        outcomes = await _outcomes(tickets, request.receive, deadline_ms / 1e3)
    finally:
        for ticket in tickets:
            if not ticket.future.done():
                ticket.cancel()
    call.answers.extend(outcome for outcome in outcomes if isinstance(outcome, Answer))
    return outcomes


async def _outcomes(
    tickets: list[Ticket], receive: Receive, timeout_s: float
) -> list[Answer | BaseException]:
    """Return answers and what was raised instead, in order; past the deadline `Expired`."""
    waiting = [asyncio.wrap_future(ticket.future) for ticket in tickets]
    answered = waiting[0] if len(waiting) == 1 else asyncio.gather(*waiting, return_exceptions=True)
    gone = asyncio.create_task(_disconnect(receive))
    try:
        await asyncio.wait((answered, gone), timeout=timeout_s, return_when="FIRST_COMPLETED")
        if gone.done() and not answered.done():
            raise ClientDisconnect
        late = Expired("the deadline passed before there was an answer")
        return [(f.exception() or f.result()) if f.done() else late for f in waiting]
    finally:
        gone.cancel()
        answered.cancel()


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _one(field: str, raw: object) -> dict:
    if not isinstance(raw, dict):
        raise RequestError(field, f"expected an object, got {describe(raw)}")
    return raw


def _many(body: dict, most: int) -> list[dict]:
    for key in body:
        if key != "requests":
            raise RequestError(key, "unknown key; a body of several requests has only `requests`")
    raws = body["requests"]
    if not isinstance(raws, list) or not 1 <= len(raws) <= most:
        came = f"{len(raws):,} of them" if isinstance(raws, list) else describe(raws)
        raise RequestError("requests", f"expected a list of 1 to {most} requests, got {came}")
    return [_one(f"requests[{position}]", raw) for position, raw in enumerate(raws)]


def _part(call: Call, raw: dict, outcome: Answer | BaseException) -> bytes:
    """Return one of several responses; it has an error of its own where there is no answer."""
    if isinstance(outcome, Answer):
        return outcome.to_json()
    fault, named = fault_of(outcome), raw.get("id")
    call.reason = fault.reason
    if fault.status == 500:
        fields = {"request_id": call.request_id}
        _log.error("unexpected fault", exc_info=outcome, extra={"fields": fields})
    readable = isinstance(named, str | int) and not isinstance(named, bool)
    error = {"field": fault.field, "message": fault.message}
    # Not orjson: an id that nobody has checked yet may hold what UTF-8 cannot.
    return json.dumps({"id": named if readable else None, "error": error}).encode()


def timeout_ms(request: Request, engine: Engine) -> float:
    """Return the time a call may take, by its header `x-timeout-ms` or the engine's default.

    Raises:
        RequestError: if the header is no number in its range.
    """
    text = request.headers.get("x-timeout-ms")
    if text is None:
        return engine.options.timeout_ms
    # Not all that `float` reads: 1_000, 1e3 and Arabic digits are no decimal numbers to others.
    value = float(text) if _DECIMAL.fullmatch(text) else 0.0
    if not 1 <= value <= MAX_TIMEOUT_MS:
        expected = f"expected from 1 to {MAX_TIMEOUT_MS} milliseconds"
        raise RequestError("x-timeout-ms", f"{expected}, got {describe(text)}")
    return value


def _json(body: bytes) -> Response:
    return Response(body, media_type="application/json")
