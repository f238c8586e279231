"""The HTTP application: routes of every room behind one front."""

from __future__ import annotations

from collections.abc import Callable

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from grace.errors import RequestError
from grace.serve import http, openapi, playground
from grace.serve.calls import Observer
from grace.serve.config import ServeConfig
from grace.serve.engine import Draining, Engine, Expired, Overloaded
from grace.serve.faults import Fault
from grace.serve.front import Front, answer_fault
from grace.serve.kserve import http as kserve
from grace.serve.metrics import Metrics
from grace.serve.security import Tokens
from grace.serve.tracing import Tracing

ROUTES: list[Callable[[Engine, ServeConfig], list[BaseRoute]]] = [
    http.routes,
    openapi.routes,
    kserve.routes,
    playground.routes,
]
"""Each room's routes. A handler finds its `Call` in `request.state.call`: it takes the client's
name from it and adds answers to it, so that they are counted, logged and traced like any other."""


def build_app(
    engine: Engine,
    config: ServeConfig,
    tracing: Tracing | None = None,
    tokens: Tokens | None = None,
) -> Starlette:
    """Return the application.

    Args:
        engine: that answers.
        config: limits and telemetry.
        tracing: where spans go, if anywhere.
        tokens: of `http.token_file`, where one is named.

    Raises:
        ConfigError: if that file cannot be read.
    """
    if tokens is None and config.http.token_file:
        tokens = Tokens.load(config.http.token_file, "http.token_file")
    observer = Observer(config.telemetry, Metrics(engine), tracing)

    async def metrics(request: Request) -> Response:
        content, kind = observer.metrics.render()
        return Response(content, headers={"content-type": kind})

    app = Starlette(
        routes=[
            *(route for routes in ROUTES for route in routes(engine, config)),
            Route("/metrics", metrics),
        ],
        middleware=[
            Middleware(Front, config=config.http, observer=observer, tokens=tokens),
        ],
        exception_handlers=dict.fromkeys(
            (Fault, RequestError, Overloaded, Draining, Expired, HTTPException), answer_fault
        ),
    )
    app.router.redirect_slashes = False
    app.state.observer = observer
    return app
