"""A small engine, its configuration, and a server of it on a real port."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from model_cases import SPEC, small_config
from starlette.applications import Starlette

import grace
from grace.model import EncoderDecoder, save_model
from grace.serve import Engine, EngineOptions
from grace.serve.config import ServeConfig
from grace.serve.config_file import make_config
from grace.serve.listening import bind, listen
from grace.serve.security import tls_context

SCHEMA = {
    "attributes": [
        {"name": "age", "kind": "range"},
        {"name": "gender", "kind": "categorical", "values": ["f", "m"]},
        {"name": "place", "kind": "set"},
    ]
}
ADS = [
    {
        "ad_id": i,
        "sid": [i // 25, i // 5 % 5, i % 5],
        "rules": {"age": {"min": 18}} if i % 3 else {"place": {"exclude": ["US"]}},
    }
    for i in range(125)
]
REQUEST = {"id": "r1", "attributes": {"age": 30, "gender": "f", "place": ["DE"]}}
TOKEN = "a-token-of-some-length"


class Model:
    """Scores that depend on nothing; a gate can hold batches back.

    Attributes:
        gate: while it is cleared, a batch waits in its prefill.
        fault: raised there.
    """

    def __init__(self):
        self.gate = threading.Event()
        self.gate.set()
        self.fault: Exception | None = None
        self.logits = torch.from_numpy(np.random.default_rng(0).normal(size=5)).float()

    def start(self, features):
        assert self.gate.wait(20)
        if self.fault is not None:
            raise self.fault
        return len(features)

    def step(self, state, parents, tokens):
        beams = 1 if parents is None else parents.shape[1]
        return self.logits.expand(state, beams, 5)


def small_engine(**options) -> tuple[Engine, Model]:
    """An engine over ADS, and its model."""
    model = Model()
    index = grace.build_index(ADS, SCHEMA)
    options = EngineOptions(**{"timeout_ms": 10_000.0, **options})
    return Engine(index, model, grace.BeamPlan((1, 4, 8), 16), options), model


def config(**sections) -> ServeConfig:
    """A configuration whose directories nobody opens."""
    return make_config({"index": {"directory": "i"}, "model": {"directory": "m"}} | sections)


def save_artefacts(folder: Path) -> None:
    """Write an index and a trained form of model, as `folder/index` and `folder/model`."""
    grace.build_index(ADS, SCHEMA, out=folder / "index")
    torch.manual_seed(0)
    save_model(EncoderDecoder(small_config(), SPEC), folder / "model")


@contextmanager
def served(app: Starlette, serve_config: ServeConfig) -> Iterator[int]:
    """Serve an application from a thread, as `grace serve` does; gives the port."""
    http = serve_config.http
    port = bind("http", "127.0.0.1", 0)
    tls = tls_context(http.tls_cert, http.tls_key)
    stop, ready = threading.Event(), threading.Event()

    async def run() -> None:
        listener = await listen("http", app, port, http, tls)
        ready.set()
        await asyncio.to_thread(stop.wait)
        await listener.stop()

    number = port.getsockname()[1]
    thread = threading.Thread(target=asyncio.run, args=(run(),))
    thread.start()
    assert ready.wait(20)
    try:
        yield number
    finally:
        stop.set()
        thread.join(20)
        assert not thread.is_alive()
