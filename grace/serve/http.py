"""`/v1`: requests in as JSON, answers out as the engine wrote them; health and metadata."""

from __future__ import annotations

import asyncio

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from grace.serve.config import ServeConfig
from grace.serve.engine import Engine, Expired
from grace.serve.faults import json_response
from grace.serve.health import why_not_ready
from grace.serve.retrieve import Outcome, disconnected, retrieve_route
from grace.serve.ticket import LATE


def routes(engine: Engine, config: ServeConfig) -> list[BaseRoute]:
    """Return the routes under `/v1`."""

    async def ask(
        raws: list[dict], text: bytes | None, request: Request, deadline_ms: float
    ) -> list[Outcome]:
        client = request.state.call.client
        tickets = engine.submit_all(raws, client, deadline_ms, as_text=True)
        waiting = [asyncio.wrap_future(ticket.future) for ticket in tickets]
        answered = (
            waiting[0] if len(waiting) == 1 else asyncio.gather(*waiting, return_exceptions=True)
        )
        try:
            await disconnected(request.receive, answered, deadline_ms / 1e3)
            late = Expired(LATE)
            return [(f.exception() or f.result()) if f.done() else late for f in waiting]
        finally:
            answered.cancel()
            for ticket in tickets:
                if not ticket.future.done():
                    ticket.cancel()

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
        retrieve_route(ask, config.http, engine.options.timeout_ms),
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
