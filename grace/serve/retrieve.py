"""`POST /v1/retrieve`, whoever answers: an engine in this process, or one in another."""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import Awaitable, Callable
from typing import Protocol

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive

from grace.catalog.values import describe
from grace.errors import RequestError
from grace.serve.calls import Call
from grace.serve.config import HttpConfig
from grace.serve.faults import fault_of
from grace.serve.limits import read_json

PATH = "/v1/retrieve"
MAX_TIMEOUT_MS = 600_000

_DECIMAL = re.compile(r"[0-9]+(\.[0-9]+)?")
_log = logging.getLogger(__name__)


class Written(Protocol):
    """An answer as text; logs and traces read the rest."""

    version: str
    batch_size: int
    stages_ms: dict[str, float]
    error: RequestError | None

    def to_json(self) -> bytes:
        """Return it as the engine wrote it."""


Outcome = Written | BaseException
Ask = Callable[[list[dict], bytes | None, Request, float], Awaitable[list[Outcome]]]
"""Answers requests, all or none: of dicts, the text of the only one where it is at hand, the call
and the milliseconds it may take. What it raises is the whole call's."""


def retrieve_route(ask: Ask, config: HttpConfig, default_ms: float) -> Route:
    """Return the route.

    Args:
        ask: answers.
        config: limits.
        default_ms: deadline of a call that names none.
    """

    async def retrieve(request: Request) -> Response:
        body = await read_json(request, config.max_depth, config.body_timeout_s)
        deadline_ms = timeout_ms(request, default_ms)
        call: Call = request.state.call
        if isinstance(body, dict) and "requests" in body:
            raws = _many(body, config.max_requests)
            outcomes = await ask(raws, None, request, deadline_ms)
            _note(call, outcomes)
            parts = [_part(call, *pair) for pair in zip(raws, outcomes, strict=True)]
            return _json(b'{"responses":[' + b",".join(parts) + b"]}")
        raws = [_one("request", body)]
        outcomes = await ask(raws, await request.body(), request, deadline_ms)
        _note(call, outcomes)
        (outcome,) = outcomes
        if isinstance(outcome, BaseException):
            raise outcome
        if outcome.error is not None:
            raise outcome.error
        return _json(outcome.to_json())

    return Route(PATH, retrieve, methods=["POST"])


async def disconnected(receive: Receive, answered: asyncio.Future, timeout_s: float | None) -> None:
    """Wait until there is an answer, or the time is over.

    Raises:
        ClientDisconnect: if the client goes before that.
    """
    gone = asyncio.create_task(_disconnect(receive))
    try:
        await asyncio.wait((answered, gone), timeout=timeout_s, return_when="FIRST_COMPLETED")
        if gone.done() and not answered.done():
            raise ClientDisconnect
    finally:
        gone.cancel()


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _note(call: Call, outcomes: list[Outcome]) -> None:
    call.answers.extend(one for one in outcomes if not isinstance(one, BaseException))


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


def _part(call: Call, raw: dict, outcome: Outcome) -> bytes:
    """Return one of several responses; it has an error of its own where there is no answer."""
    if not isinstance(outcome, BaseException):
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


def timeout_ms(request: Request, default_ms: float) -> float:
    """Return the time a call may take, by its header `x-timeout-ms` or the default.

    Raises:
        RequestError: if the header is no number in its range.
    """
    text = request.headers.get("x-timeout-ms")
    if text is None:
        return default_ms
    # Not all that `float` reads: 1_000, 1e3 and Arabic digits are no decimal numbers to others.
    value = float(text) if _DECIMAL.fullmatch(text) else 0.0
    if not 1 <= value <= MAX_TIMEOUT_MS:
        expected = f"expected from 1 to {MAX_TIMEOUT_MS} milliseconds"
        raise RequestError("x-timeout-ms", f"{expected}, got {describe(text)}")
    return value


def _json(body: bytes) -> Response:
    return Response(body, media_type="application/json")
