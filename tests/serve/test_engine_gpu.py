"""The engine on a CUDA device: the retriever's answers while batches overlap, swap and fail."""

import json

import numpy as np
import pytest
import torch
from engines import answers, assert_same
from harness import build_rows
from model_cases import random_features, small_index, small_model
from test_engine import until

import grace
from grace.kernels.tuning import pinned
from grace.model.step_decoder import StepDecoder
from grace.serve import Engine, EngineOptions

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
]
PLAN = grace.BeamPlan((1, 5, 20), 40)
SCHEMA = [{"name": "age", "kind": "range"}]


@pytest.fixture(autouse=True)
def untuned():
    with pinned():
        yield


def requests_of(count, seed=0):
    draw = np.random.default_rng(seed)
    return [
        {"id": i, "attributes": {"age": int(draw.integers(10, 60))},
         "features": random_features(draw)}
        for i in range(count)
    ]  # fmt: skip


def engine_on_gpu(index, matching="exact", timeline=None, **options):
    options = EngineOptions(**({"timeout_ms": 120e3, "max_batch": 4} | options))
    model = small_model(vocab_size=8)
    return Engine(index, model, PLAN, options, timeline, matching=matching, device="cuda")


@pytest.mark.parametrize("matching", ["valid", "bitmask+bloom", "dynamic-kway", "exact"])
def test_full_batches_have_the_retrievers_bits(matching):
    """Each batch is the requests in their order; several are under way at once."""
    index, requests = small_index(), requests_of(200)
    engine = engine_on_gpu(index, matching, max_wait_ms=100e3)
    found = answers([engine.submit(raw, trace=i % 7 == 0) for i, raw in enumerate(requests)])
    wanted = engine.retriever.retrieve(requests, trace=True)
    for i, (answer, result) in enumerate(zip(found, wanted, strict=True)):
        assert_same(answer, result, index)
        assert answer.batch_size == 4
        if i % 7 == 0:
            assert answer.trace.steps == result.trace.steps
    assert engine.counters.graph_replays == 50
    assert engine.drain()


def test_the_gpu_sees_only_what_is_wanted(tmp_path):
    """Wrong and expired requests leave their batch before it is launched."""
    index = small_index()
    engine = engine_on_gpu(index, timeline=tmp_path / "trace.json")
    requests = requests_of(40)
    tickets = []
    for i, raw in enumerate(requests):
        wrong = raw | {"extra": 1} if i % 4 == 1 else raw
        tickets.append(engine.submit(wrong, timeout_ms=0 if i % 4 == 2 else None))
    kept = [i for i in range(40) if i % 4 in (0, 3)]
    found = answers([tickets[i] for i in kept])
    assert {answer.error for answer in found} == {None}
    assert [answer.id for answer in found] == kept
    assert engine.drain()
    spans = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    gpu = [span for span in spans if span.get("ph") == "X" and span["pid"] == 2]
    assert {span["name"] for span in gpu} == {"compute"}


def test_swaps_while_batches_are_under_way(tmp_path):
    requests, wanted = requests_of(32), {}

    def rows(turn):
        sids = np.random.default_rng(turn).integers(0, 5, (60 + turn, 3)).tolist()
        return [
            {"ad_id": i, "sid": sid, "rules": {"age": {"min": i % 40}}}
            for i, sid in enumerate(sids)
        ]

    build_rows(rows(0), SCHEMA, tmp_path)
    engine = engine_on_gpu(tmp_path, max_wait_ms=100e3)
    for turn in range(1, 6):
        found = answers([engine.submit(raw) for raw in requests])
        for answer, raw in zip(found, requests, strict=True):
            version = answer.version
            if version not in wanted:
                retriever = grace.Retriever(
                    answer.index, small_model(vocab_size=8), PLAN, device="cuda", batch_size=4
                )
                wanted[version] = retriever.retrieve(requests)
            assert_same(answer, wanted[version][raw["id"]], answer.index)
        old = engine.index.version
        build_rows(rows(turn), SCHEMA, tmp_path, keep=2)
        until(lambda old=old: engine.index.version != old)
    assert len(wanted) >= 5
    assert engine.drain()


def test_no_memory_for_new_graphs(monkeypatch):
    """A matcher has grown; its batch fails, the engine says so, and goes on when there is some."""
    rows = [
        {"ad_id": i, "sid": [i % 5, i % 4, i % 3], "rules": {"place": {"include": [f"p{i}"]}}}
        for i in range(300)
    ]
    index = build_rows(rows, [{"name": "place", "kind": "set"}])
    engine = engine_on_gpu(index, "bitmask+bloom", max_batch=1)
    asked = {"id": 1, "attributes": {"place": [f"p{i}" for i in range(200)]}}
    with monkeypatch.context() as patch:

        def short(*args):
            raise torch.OutOfMemoryError("CUDA out of memory.")

        patch.setattr(StepDecoder, "step", short)
        error = engine.submit(asked).future.exception(120)
    assert isinstance(error, torch.OutOfMemoryError | grace.errors.ConfigError)
    until(lambda: engine.status()["failed"])
    found = answers([engine.submit(asked)])[0]
    assert_same(found, engine.retriever.retrieve([asked])[0], index)
    assert engine.status()["failed"] is None
    assert engine.drain()
