"""`grace serve`: a retriever behind HTTP."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Annotated

import typer

from grace.errors import ConfigError
from grace.index import MATCHERS

NEEDED = (
    "starlette", "uvicorn", "httptools", "uvloop", "orjson", "pydantic", "prometheus_client",
    "grpc", "grpc_health",
)  # fmt: skip


def serve(
    config: Annotated[
        Path | None, typer.Option(help="TOML file; every key is in docs/serving.md.")
    ] = None,
    index: Annotated[str | None, typer.Option(help="Directory of the index.")] = None,
    model: Annotated[str | None, typer.Option(help="Directory of a trained model.")] = None,
    plan: Annotated[str | None, typer.Option(help="Beams entering each step: 1,256,512.")] = None,
    sids: Annotated[
        int | None, typer.Option(help="SIDs to keep; by default the last width.")
    ] = None,
    matching: Annotated[str | None, typer.Option(help=" | ".join(MATCHERS))] = None,
    device: Annotated[str | None, typer.Option(help="Where the model runs.")] = None,
    precision: Annotated[
        str | None, typer.Option(help="Of the decoder: auto | float32 | bfloat16 | float8.")
    ] = None,
    top_k: Annotated[int | None, typer.Option(help="Ads per request; by default all.")] = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on.")] = None,
    port: Annotated[int | None, typer.Option(help="HTTP; 0 takes a free one.")] = None,
    workers: Annotated[
        int | None, typer.Option(help="Processes for HTTP; 0 serves it beside the engine.")
    ] = None,
    grpc_port: Annotated[int | None, typer.Option(help="gRPC; 0 serves none.")] = None,
    admin_port: Annotated[int | None, typer.Option(help="Admin; 0 serves none.")] = None,
    max_batch: Annotated[int | None, typer.Option(help="Requests decoded together.")] = None,
    timeline: Annotated[
        str | None, typer.Option(help="File for a timeline of stages, written at the end.")
    ] = None,
    log_level: Annotated[str | None, typer.Option(help="debug | info | warning | error")] = None,
) -> None:
    """Answer requests over HTTP until SIGTERM; flags go before the file's values."""
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise ConfigError(f"serving needs {', '.join(missing)}: pip install 'grace[serve]'")
    from grace.serve.config_file import load_config
    from grace.serve.server import serve as run

    flags = {
        "index.directory": index,
        "model.directory": model,
        "model.plan": _widths(plan),
        "model.num_sids": sids,
        "model.matching": matching,
        "model.device": device,
        "model.precision": precision,
        "model.top_k": top_k,
        "http.host": host,
        "http.port": port,
        "http.workers": workers,
        "grpc.port": grpc_port,
        "admin.port": admin_port,
        "batching.max_batch": max_batch,
        "telemetry.timeline": timeline,
        "telemetry.log_level": log_level,
    }
    if not run(load_config(None if config is None else str(config), flags), typer.echo):
        raise typer.Exit(1)


def _widths(plan: str | None) -> list[int] | None:
    try:
        return None if plan is None else [int(width) for width in plan.split(",")]
    except ValueError:
        raise ConfigError(f"--plan: expected integers such as 1,256,512, got {plan!r}") from None
