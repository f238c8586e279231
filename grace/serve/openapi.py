"""`/openapi.json`, and `/docs`: the same as a page that needs no network and no script."""

from __future__ import annotations

import html
import json
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import BaseRoute, Route

from grace.catalog import Schema
from grace.serve import models
from grace.serve.config import ServeConfig
from grace.serve.engine import Engine
from grace.serve.faults import json_response
from grace.serve.retrieve import MAX_TIMEOUT_MS

PAGE_POLICY = "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'"
ERRORS = {
    "400": "The request is wrong; `field` says where.",
    "401": "No token, or one that the server does not know.",
    "408": "The body did not come in time.",
    "413": "The body is too large.",
    "415": "Not application/json in UTF-8.",
    "429": "The queue is full; come back after `Retry-After` seconds.",
    "500": "The server's fault; its log has the request id.",
    "503": "The server is going down, or has too many connections.",
    "504": "The deadline passed.",
}
_HEADERS = (
    ("x-request-id", "Taken over into the reply, the log and the trace.", {"type": "string"}),
    ("x-client-id", "Who asks, for turns in the queue, where no token says it.",
     {"type": "string"}),
    ("x-timeout-ms", "From now to the deadline.",
     {"type": "number", "minimum": 1, "maximum": MAX_TIMEOUT_MS}),
)  # fmt: skip
_MODELS = (
    models.RetrieveRequest, models.RetrieveRequests, models.RetrieveResponse,
    models.RetrieveResponses, models.ErrorResponse, models.Live, models.Ready, models.ModelInfo,
)  # fmt: skip


def routes(engine: Engine, config: ServeConfig) -> list[BaseRoute]:
    """Return `/openapi.json` and `/docs`."""

    async def openapi(request: Request) -> Response:
        return json_response(describe_api(engine, config))

    async def docs(request: Request) -> Response:
        page = _page(describe_api(engine, config))
        return HTMLResponse(page, headers={"content-security-policy": PAGE_POLICY})

    return [Route("/openapi.json", openapi), Route("/docs", docs)]


def describe_api(engine: Engine, config: ServeConfig) -> dict:
    """Return the OpenAPI 3.1 description of `/v1` and `/metrics`, for the current catalogue."""
    _, schemas = models_json_schema(
        [(model, "validation") for model in _MODELS],
        ref_template="#/components/schemas/{model}",
    )
    definitions = schemas["$defs"]
    definitions["RetrieveRequest"]["properties"]["attributes"] = _attributes(engine.index.schema)
    definitions["RetrieveRequests"]["properties"]["requests"]["maxItems"] = config.http.max_requests
    description: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {
            "title": "Grace",
            "version": _version(),
            "description": "Generative retrieval inside the catalogue and inside what each "
            "request may see.",
        },
        "paths": _paths(),
        "components": {"schemas": definitions},
    }
    if config.http.token_file:
        scheme = {"type": "http", "scheme": "bearer"}
        description["components"]["securitySchemes"] = {"token": scheme}
        description["security"] = [{"token": []}]
    return description


def _paths() -> dict:
    retrieve = {
        "operationId": "retrieve",
        "summary": "Ads for one request, or for several.",
        "parameters": [
            {"name": name, "in": "header", "description": about, "schema": schema}
            for name, about, schema in _HEADERS
        ],
        "requestBody": {
            "required": True,
            "content": _content(models.RetrieveRequest, models.RetrieveRequests),
        },
        "responses": {
            "200": _reply("Answers.", models.RetrieveResponse, models.RetrieveResponses),
            **_errors(*ERRORS),
        },
    }
    live = _get("live", "The process answers.", models.Live, open_to_all=True)
    ready = _get("ready", "Whether new requests should be sent here.", models.Ready, True)
    ready["responses"]["503"] = _reply("Not now.", models.Ready)
    model = _get("model", "The catalogue's shape, the search, the version.", models.ModelInfo)
    metrics = {
        "operationId": "metrics",
        "summary": "Counts in Prometheus' format.",
        "responses": {
            "200": {
                "description": "Text.",
                "content": {"text/plain": {"schema": {"type": "string"}}},
            },
            **_errors("401", "500"),
        },
    }
    return {
        "/v1/retrieve": {"post": retrieve},
        "/v1/health/live": {"get": live},
        "/v1/health/ready": {"get": ready},
        "/v1/model": {"get": model},
        "/metrics": {"get": metrics},
    }


def _attributes(schema: Schema) -> dict:
    """Return what a request's attributes may be; null, [] and absent all mean unknown."""
    text = {"type": ["string", "integer", "boolean"]}
    kinds = {
        "categorical": (text, {"maxItems": 1}),
        "range": ({"type": "number"}, {"maxItems": 1}),
        "set": (text, {}),
    }
    properties = {}
    for attribute in schema.attributes:
        value, bound = kinds[attribute.kind]
        several = {"type": "array", "items": value, **bound}
        properties[attribute.name] = {"anyOf": [value, several, {"type": "null"}]}
    return {
        "description": "Targeting attributes; one that is absent, null or [] is unknown.",
        "type": ["object", "null"],
        "properties": properties,
        "additionalProperties": False,
    }


def _get(name: str, summary: str, model: type[BaseModel], open_to_all: bool = False) -> dict:
    errors = ("500",) if open_to_all else ("401", "500")
    operation = {
        "operationId": name,
        "summary": summary,
        "responses": {"200": _reply(summary, model), **_errors(*errors)},
    }
    return operation | ({"security": []} if open_to_all else {})


def _errors(*statuses: str) -> dict:
    return {status: _reply(ERRORS[status], models.ErrorResponse) for status in statuses}


def _reply(description: str, *kinds: type[BaseModel]) -> dict:
    return {"description": description, "content": _content(*kinds)}


def _content(*kinds: type[BaseModel]) -> dict:
    refs = [{"$ref": f"#/components/schemas/{kind.__name__}"} for kind in kinds]
    return {"application/json": {"schema": refs[0] if len(refs) == 1 else {"anyOf": refs}}}


def _version() -> str:
    try:
        return version("grace")
    except PackageNotFoundError:  # run from a checkout that was never installed
        return "0"


def _page(description: dict) -> str:
    def cell(text: object) -> str:
        return html.escape(str(text))

    def pretty(content: object) -> str:
        return f"<pre>{cell(json.dumps(content, indent=1))}</pre>"

    parts = []
    for path, operations in description["paths"].items():
        for method, operation in operations.items():
            rows = "".join(
                f"<tr><td>{cell(status)}<td>{cell(reply['description'])}"
                for status, reply in operation["responses"].items()
            )
            headers = "".join(
                f"<tr><td>{cell(parameter['name'])}<td>{cell(parameter['description'])}"
                for parameter in operation.get("parameters", ())
            )
            parts.append(
                f"<h2><b>{method.upper()}</b> {cell(path)}</h2><p>{cell(operation['summary'])}</p>"
                + (f"<h3>Headers</h3><table>{headers}</table>" if headers else "")
                + f"<h3>Replies</h3><table>{rows}</table>"
            )
    schemas = "".join(
        f"<details id='{cell(name)}'><summary>{cell(name)}: {cell(schema.get('description', ''))}"
        f"</summary>{pretty(schema)}</details>"
        for name, schema in description["components"]["schemas"].items()
    )
    return (
        "<!doctype html><html lang=en><meta charset=utf-8><title>Grace: API</title>"
        "<meta name=viewport content='width=device-width, initial-scale=1'>"
        "<style>body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;"
        "padding:0 1rem}td{padding:.1rem 1rem .1rem 0;vertical-align:top}pre{overflow:auto;"
        "background:#8881;padding:.5rem}:root{color-scheme:light dark}</style>"
        f"<h1>{cell(description['info']['title'])} {cell(description['info']['version'])}</h1>"
        f"<p>{cell(description['info']['description'])} The same for programs: "
        "<a href='openapi.json'>openapi.json</a>.</p>"
        + "".join(parts)
        + f"<h2>Bodies</h2>{schemas}"
    )
