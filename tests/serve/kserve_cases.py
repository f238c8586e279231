"""A small real engine behind both transports of the Open Inference Protocol, on 127.0.0.1."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import threading

import torch
import uvicorn

import grace
from grace.serve import Engine, EngineOptions
from grace.serve.app import build_app
from grace.serve.config import (
    GrpcConfig,
    HttpConfig,
    IndexConfig,
    ModelConfig,
    ServeConfig,
    TelemetryConfig,
)
from grace.serve.kserve.grpc import start_server
from grace.serve.security import Tokens

LEVELS = (5, 7, 4)
PLAN = grace.BeamPlan((1, 4, 8), 16)
SCHEMA = {"attributes": [{"name": "age", "kind": "range"}, {"name": "place", "kind": "set"}]}
REQUESTS = [
    {"id": "a", "attributes": {"age": 16, "place": ["Köln"]}, "features": {"taste": 1}},
    {"id": 2, "attributes": {"age": 44}, "features": {"taste": 5}, "top_k": 3},
    {"id": "c", "attributes": {"place": ["Graz", "Linz"]}, "features": {"taste": 9}},
    {"id": "none", "attributes": {"age": 3}, "features": {"taste": 2}, "top_k": 0},
]


class Model:
    """Logits that depend on the request's `taste`, the step and the token only."""

    def start(self, features: list[dict]) -> dict:
        tastes = torch.tensor([float(f.get("taste", 0)) for f in features])
        return {"tastes": tastes[:, None, None], "step": 0}

    def step(self, state: dict, parents: torch.Tensor | None, tokens: torch.Tensor | None):
        beams = 1 if parents is None else parents.shape[1]
        state["step"] += 1
        phase = state["tastes"] * 1.3 + torch.arange(max(LEVELS)) * (0.7 + state["step"])
        return torch.sin(phase).expand(len(state["tastes"]), beams, -1)


def make_ads(integers: bool = False, offset: int = 0) -> list[dict]:
    """Return ads; `offset` tells the catalogues of two versions apart."""
    ads = []
    for i in range(60):
        rules = {}
        if i % 3 == 0:
            rules["age"] = {"min": 18}
        if i % 4 == 0:
            rules["place"] = {"include": ["Köln", "Graz"]}
        name = offset + i if integers else f"ad-{offset + i}-ü"
        ads.append(
            {"ad_id": name, "sid": [i % n for n in LEVELS], "rules": rules}
        )  # fmt: skip
    return ads


def make_index(**options) -> grace.Index:
    return grace.build_index(make_ads(**options), SCHEMA)


def make_config(**http) -> ServeConfig:
    return ServeConfig(
        index=IndexConfig(directory="."),
        model=ModelConfig(directory="."),
        http=HttpConfig(port=free_port(), **http),
        grpc=GrpcConfig(port=free_port()),
        telemetry=TelemetryConfig(access_log=0),
    )


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def make_engine(index=None, model=None, **options) -> Engine:
    return Engine(index or make_index(), model or Model(), PLAN, EngineOptions(**options))


@contextlib.contextmanager
def serving(engine: Engine, config: ServeConfig, tokens: Tokens | None = None):
    """Serve both transports from one event loop in a thread; yields `(http, grpc)` addresses."""
    loop = asyncio.new_event_loop()
    app = build_app(engine, config, tokens=tokens)
    http = uvicorn.Server(
        uvicorn.Config(app, host="127.0.0.1", port=config.http.port, log_level="warning")
    )
    started = threading.Event()
    stopping = asyncio.Event()
    failures: list[BaseException] = []

    async def run() -> None:
        server = await start_server(engine, config, app.state.observer, tokens)
        serve = asyncio.ensure_future(http.serve())
        while not http.started:
            await asyncio.sleep(0.01)
        started.set()
        await stopping.wait()
        http.should_exit = True
        await serve
        await server.stop(0)

    def main() -> None:
        try:
            loop.run_until_complete(run())
        except BaseException as error:
            failures.append(error)
            started.set()

    thread = threading.Thread(target=main)
    thread.start()
    started.wait()
    try:
        if failures:
            raise failures[0]
        yield f"127.0.0.1:{config.http.port}", f"127.0.0.1:{config.grpc.port}"
    finally:
        if not failures:
            loop.call_soon_threadsafe(stopping.set)
        thread.join()
        loop.close()


def as_texts(requests: list) -> list[bytes]:
    return [json.dumps(request).encode() for request in requests]


def expected(index: grace.Index, requests: list[dict]) -> list[grace.Result]:
    return grace.Retriever(index, Model(), PLAN).retrieve(requests)
