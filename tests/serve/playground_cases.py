"""A small world for the playground's tests, and a server of its page on a free port."""

from __future__ import annotations

import json
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
import uvicorn
from starlette.applications import Starlette

import grace
from grace.model import EncoderDecoder, FeatureSpec, ModelConfig
from grace.serve import Engine, EngineOptions
from grace.serve.playground import routes

SCHEMA = {
    "attributes": [
        {"name": "age", "kind": "range"},
        {"name": "gender", "kind": "categorical", "values": ["male", "female"]},
        {"name": "place", "kind": "set"},
        {"name": "watched", "kind": "set"},
    ]
}
FIELDS = {
    "fields": [
        {"name": "age", "kind": "numeric", "mean": 35.0, "std": 12.0},
        {"name": "gender", "kind": "categorical", "values": ["male", "female"]},
        {"name": "history", "kind": "sequence", "actions": ["bad", "good"], "max_length": 6},
    ]
}
AT = "2026-03-01T12:00:00+00:00"
PLAN = grace.BeamPlan((1, 6, 8), 8)
NUM_ADS = 120


def film(number: int) -> dict:
    """A catalogue row: titles, all kinds of rules, windows that are over, pauses."""
    rng = np.random.default_rng(number)
    rules = {}
    if rng.random() < 0.5:
        rules["age"] = {"min": int(rng.integers(10, 40))}
    if rng.random() < 0.2:
        rules["gender"] = {"include": [str(rng.choice(["male", "female"]))]}
    if rng.random() < 0.5:
        rules["place"] = {"include": [f"US/{rng.choice(['MN', 'TX', 'CA'])}"]}
    if rng.random() < 0.2:
        rules["watched"] = {"exclude": [str(rng.integers(NUM_ADS))]}
    return {
        "ad_id": number,
        "title": f"Film {number}",
        "sid": rng.integers(0, 6, 3).tolist(),
        "rules": rules,
        "end": "2026-02-01T00:00:00Z" if rng.random() < 0.1 else None,
        "paused": bool(rng.random() < 0.05),
    }


def person(number: int) -> dict:
    rng = np.random.default_rng(1000 + number)
    state, gender = str(rng.choice(["MN", "TX", "CA"])), str(rng.choice(["male", "female"]))
    films, age = rng.permutation(NUM_ADS)[:4].tolist(), 12 + 9 * number
    return {
        "id": number,
        "attributes": {
            "age": age,
            "gender": gender,
            "place": ["US", f"US/{state}", f"US/{state}/city:Ada"],
            "watched": [str(film) for film in films],
        },
        "features": {
            "age": age,
            "gender": gender,
            "history": [{"ad_id": film, "action": "good"} for film in films],
        },
        "at": AT,
    }


def write_world(folder: Path, num_ads: int = NUM_ADS) -> Path:
    """Write what `grace demo` leaves behind, smaller: catalogue, people, index."""
    rows = [film(number) for number in range(num_ads)]
    for name, lines in (("catalog", rows), ("requests", map(person, range(6)))):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    grace.build_index(rows, SCHEMA, out=folder / "index")
    return folder


def model() -> EncoderDecoder:
    torch.manual_seed(0)
    config = ModelConfig(
        num_levels=3, vocab_size=6, model_dim=12, num_heads=2, head_dim=4, ffn_dim=16,
        encoder_layers=1, decoder_layers=1, num_context_tokens=5, num_recent_tokens=2,
        num_summary_tokens=2,
    )  # fmt: skip
    return EncoderDecoder(config, FeatureSpec.from_dict(FIELDS)).eval()


def config_for(index: str | Path, **playground) -> SimpleNamespace:
    """What `routes` reads of a server's config."""
    options = {"enabled": True, "people": "", "catalog": ""} | playground
    return SimpleNamespace(
        playground=SimpleNamespace(**options),
        index=SimpleNamespace(directory=str(index)),
        model=SimpleNamespace(device="cpu", precision="auto"),
    )


@contextmanager
def serving(index, own_model, plan: grace.BeamPlan = PLAN, config=None, **options) -> Iterator:
    """Serve the playground over an engine; yields (base address, engine)."""
    engine = Engine(index, own_model, plan, EngineOptions(**options))
    app = Starlette(routes=routes(engine, config or config_for(index)))
    settings = uvicorn.Config(app, "127.0.0.1", 0, log_level="error", lifespan="off")
    server = uvicorn.Server(settings)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    try:
        port = server.servers[0].sockets[0].getsockname()[1]
        yield f"http://127.0.0.1:{port}", engine
    finally:
        server.should_exit = True
        thread.join(10)
        engine.drain(10)


def call(url: str, body: object = None, raw: bytes | None = None) -> tuple[int, dict, dict]:
    """GET, or POST with a body: (status, headers, JSON or {"text"})."""
    data = raw if body is None else json.dumps(body).encode()
    try:
        answer = urllib.request.urlopen(urllib.request.Request(url, data), timeout=20)
    except urllib.error.HTTPError as error:
        answer = error
    with answer:
        content, headers = answer.read(), dict(answer.headers)
        if headers.get("content-type") == "application/json":
            return answer.status, headers, json.loads(content)
        return answer.status, headers, {"text": content.decode()}
