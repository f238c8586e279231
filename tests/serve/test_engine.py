"""The engine: a retriever's answers, whoever asks at the same time, whatever happens meanwhile."""

from __future__ import annotations

import gc
import json
import threading
import time
import weakref

import numpy as np
import pytest
import torch
from engines import (
    PATIENCE_S,
    PLAN,
    VOCAB,
    Held,
    answers,
    assert_same,
    engine_of,
    request_of,
)
from harness import build, build_rows
from hypothesis import given
from hypothesis import strategies as st
from model_cases import random_features, small_index, small_model
from strategies import MODES, Case
from test_faults_rows import SCHEMA, good_rows

import grace
from grace.retrieve.request import RequestText
from grace.serve import Draining, Engine, EngineOptions, Expired, Overloaded

WRONG = (
    {}, {"id": None}, {"id": 1.5}, {"id": "x", "attributes": []}, {"id": "x", "extra": 1},
    {"id": "x", "attributes": {"nothing": 1}}, {"id": "x", "top_k": -1}, {"id": "x", "at": "now"},
    {"id": "\ud800"}, {"id": "x", "features": []}, None, [], "text", 5,
)  # fmt: skip


@pytest.fixture(scope="module")
def index():
    return build_rows(good_rows(60), SCHEMA)


@pytest.fixture
def held(index):
    """An engine of single requests over a model that is held."""
    engine = engine_of(index, max_batch=1, contexts=3)
    engine.model = engine_model(engine)
    yield engine
    engine.model.free.set()
    engine.drain()


def engine_model(engine):
    return engine.retriever._path._generator._model


# ---- the answers ------------------------------------------------------------------------------


@given(
    seed=st.integers(0, 1 << 20), matching=st.sampled_from(MODES),
    ids=st.sampled_from(("int", "str")),
    max_batch=st.sampled_from((1, 3, 16)), contexts=st.integers(1, 3), wrong=st.lists(
        st.tuples(st.integers(0, 20), st.sampled_from(WRONG)), max_size=4),
)  # fmt: skip
def test_answers_are_the_retrievers(seed, matching, ids, max_batch, contexts, wrong):
    case = Case(seed=seed, num_ads=80, num_requests=20, ids=ids, num_levels=1 + seed % 3)
    index, requests = build(case), list(case.requests)
    for position, raw in wrong:
        requests.insert(position, raw)
    plan = grace.BeamPlan(*case.plan)
    wanted = grace.Retriever(index, case.generator, plan, matching).retrieve(requests)
    engine = engine_of(
        index, case.generator, plan, {"matching": matching}, max_batch=max_batch, contexts=contexts
    )
    try:
        found = answers([engine.submit(raw) for raw in requests])
    finally:
        assert engine.drain()
    for answer, result in zip(found, wanted, strict=True):
        assert_same(answer, result, index)
        assert answer.version == "None"
        assert answer.index is index
        assert 1 <= answer.batch_size <= max_batch
        if result.error is None:
            assert json.loads(answer.to_json())["ads"] == [
                {"ad_id": ad.ad_id, "sid": list(ad.sid), "score": float(str(np.float32(ad.score)))}
                for ad in result.ads
            ]
    assert not case.generator.violations
    counted = engine.counters
    invalid = sum(result.error is not None for result in wanted)
    assert counted.requests["invalid"] == invalid
    assert counted.requests["ok"] == len(wanted) - invalid
    assert sum(size * n for size, n in counted.batches.items()) == len(wanted)


@pytest.mark.parametrize("matching", ["off", "valid", "dynamic-kway", "exact"])
def test_graces_own_model(matching):
    """A batch of the same requests has the same bits, its trace the same steps."""
    index, draw = small_index(), np.random.default_rng(0)
    requests = [{"id": i, "features": random_features(draw)} for i in range(16)]
    engine = engine_of(
        index, small_model(), grace.BeamPlan((1, 5, 20), 40), {"matching": matching}, max_batch=16,
        max_wait_ms=PATIENCE_S * 1e3,
    )  # fmt: skip
    found = answers([engine.submit(raw, trace=i % 2 == 0) for i, raw in enumerate(requests)])
    wanted = engine.retriever.retrieve(requests, trace=True)
    for i, (answer, result) in enumerate(zip(found, wanted, strict=True)):
        assert_same(answer, result, index)
        assert answer.batch_size == 16
        assert list(answer.stages_ms) == ["queue", "input", "compute", "post"]
        assert (answer.trace is None) == (i % 2 == 1)
        if answer.trace is not None:
            assert answer.trace.steps == result.trace.steps
            assert answer.trace.matching == result.trace.matching
    assert engine.drain()


def test_texts_are_answered_as_the_requests_they_hold():
    index, draw = small_index(), np.random.default_rng(1)
    raws = [{"id": i, "features": random_features(draw)} for i in range(6)]
    raws += [{"id": 6, "features": {"age": "old"}}, {"features": {}}, {"id": "é", "at": None}]
    engine = engine_of(index, small_model(), grace.BeamPlan((1, 5, 20), 40), max_batch=16)
    texts = [RequestText(json.dumps(raw).encode()) for raw in raws]
    mixed = [text if i % 3 else raw for i, (raw, text) in enumerate(zip(raws, texts, strict=True))]
    plain, *others = (  # batch by batch: one of another size may round otherwise
        [one.to_json() for one in answers(engine.submit_all(some, as_text=True))]
        for some in (raws, texts, mixed)
    )
    assert others == [plain, plain]
    assert engine.drain()


def test_a_group_is_one_batch_though_the_device_was_idle(index):
    engine = engine_of(index, max_batch=8)
    found = answers(engine.submit_all([request_of(i) for i in range(8)], as_text=True))
    assert {answer.batch_size for answer in found} == {8}
    for i, answer in enumerate(found):
        plain = engine.submit(request_of(i)).future.result(PATIENCE_S)
        assert answer.text == answer.to_json() == plain.to_json()
        assert plain.text is None
    assert engine.drain()


def test_a_group_comes_whole_or_not_at_all(index):
    model = Held()
    engine = engine_of(index, model, max_batch=2, max_admitted=6)
    model.free.clear()
    running = engine.submit_all([request_of(i) for i in range(2)], client="a")
    model.await_batch()
    waiting = engine.submit_all([request_of(i) for i in range(2, 5)], client="a")
    with pytest.raises(Overloaded):
        engine.submit_all([request_of(i) for i in range(5, 7)], client="a")
    assert engine.status()["admitted"] == 5
    assert engine.counters.requests["overloaded"] == 2
    waiting += engine.submit_all([request_of(5)], client="a")
    model.free.set()
    assert [answer.id for answer in answers(running + waiting)] == list(range(6))
    assert engine.drain()
    assert engine.counters.requests["ok"] == 6


def test_the_text_of_a_wrong_request_says_what_is_wrong(index):
    engine = engine_of(index, max_batch=2)
    wrong, right = answers(engine.submit_all([{"id": 1, "x": 2}, request_of(2)], as_text=True))
    assert json.loads(wrong.to_json())["error"]["field"] == "x"
    assert json.loads(right.to_json())["id"] == 2
    assert engine.drain()


def test_a_request_that_breaks_the_parser_fails_alone(index, monkeypatch):
    engine = engine_of(index, max_batch=4, max_wait_ms=PATIENCE_S * 1e3)
    read = grace.Retriever.read
    monkeypatch.setattr(
        grace.Retriever, "read",
        lambda self, raws: [
            ZeroDivisionError() if raw["id"] == 2 else outcome
            for raw, outcome in zip(raws, read(self, raws), strict=True)
        ],
    )  # fmt: skip
    tickets = [engine.submit(request_of(i)) for i in range(4)]
    with pytest.raises(ZeroDivisionError):
        tickets.pop(2).future.result(PATIENCE_S)
    assert [answer.error for answer in answers(tickets)] == [None] * 3
    assert engine.counters.requests["failed"] == 1
    assert engine.drain()


@pytest.mark.parametrize(
    "odd",
    [
        {"top_k": 2**63}, {"top_k": 2**64 - 1}, {"top_k": 10**30}, {"id": 2**64 - 1},
        {"id": 10**30}, {"id": -(2**63)}, {"at": 2**64 - 1}, {"at": "9999-12-31T23:59:59Z"},
    ],
    ids=str,
)  # fmt: skip
def test_numbers_past_64_bits_hurt_no_neighbour(index, odd):
    engine = engine_of(index, max_batch=3, max_wait_ms=PATIENCE_S * 1e3)
    tickets = [engine.submit(raw) for raw in (request_of(0), request_of(1) | odd, request_of(2))]
    found = answers(tickets)
    assert [found[b].error for b in (0, 2)] == [None, None]
    if "top_k" in odd:
        retriever = grace.Retriever(index, Held(), PLAN)
        assert len(found[1].positions) == len(retriever.retrieve([request_of(1)])[0].ads)
    assert json.loads(found[1].to_json())["id"] == odd.get("id", 1)
    assert engine.drain()


def test_logits_without_numbers_fail_alone(index):
    engine = engine_of(index, max_batch=3, max_wait_ms=PATIENCE_S * 1e3)
    bad = request_of(1, features={"seed": 1, "bad": "nan", "bad_step": 1})
    found = answers([engine.submit(raw) for raw in (request_of(0), bad, request_of(2))])
    assert [answer.error and answer.error.field for answer in found] == [None, "logits", None]
    assert engine.drain()


# ---- forming batches --------------------------------------------------------------------------


def test_what_comes_while_the_device_is_busy_forms_the_next_batch(index):
    engine = engine_of(index, max_batch=8)
    model = engine_model(engine)
    model.free.clear()
    tickets = [engine.submit(request_of(0))]
    model.await_batch()
    tickets += [engine.submit(request_of(i)) for i in range(1, 6)]
    model.free.set()
    assert [answer.batch_size for answer in answers(tickets)] == [1] + [5] * 5
    assert model.begun == [[0], [1, 2, 3, 4, 5]]
    assert engine.counters.batches == {1: 1, 5: 1}
    assert engine.drain()


def test_a_full_batch_is_read_while_another_is_searched(held):
    """And no more than that one leave the queue."""
    held.model.free.clear()
    first = held.submit(request_of(0))
    held.model.await_batch()
    wrong = held.submit({"id": 1, "extra": 1})  # its input stage answers it
    assert wrong.future.result(PATIENCE_S).error.field == "extra"
    rest = [held.submit(request_of(i)) for i in range(2, 8)]
    assert not first.future.done()
    until(lambda: held.counters.batches == {1: 3})
    time.sleep(0.05)
    assert held.counters.batches == {1: 3}
    assert held.model.begun == [[0]]
    held.model.free.set()
    assert [answer.id for answer in answers([first, *rest])] == [0, *range(2, 8)]
    assert held.model.begun == [[0], *([i] for i in range(2, 8))]


def until(condition):
    """Wait for something that other threads bring about."""
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


def test_the_first_of_a_batch_waits_for_others(index):
    engine = engine_of(index, max_batch=2, max_wait_ms=PATIENCE_S * 1e3)
    first = engine.submit(request_of(0))
    time.sleep(0.05)
    assert not first.future.done()
    second = engine.submit(request_of(1))
    assert [answer.batch_size for answer in answers([first, second])] == [2, 2]
    engine.submit(request_of(2))
    assert engine.drain()  # no more will come: nobody waits for them


def test_clients_take_turns(held):
    held.model.free.clear()
    held.submit(request_of(0))
    held.model.await_batch()
    tickets = [held.submit(request_of(i), client="flood") for i in range(1, 9)]
    tickets += [held.submit(request_of(i), client="other") for i in range(10, 12)]
    held.model.free.set()
    answers(tickets)
    order = [seed for batch in held.model.begun for seed in batch]
    assert max(order.index(10), order.index(11)) < order.index(6)


# ---- requests that are not answered -----------------------------------------------------------


def test_an_expired_request_never_reaches_the_model(held):
    """Neither one that waits for its batch, nor one whose batch waits for the device."""
    held.model.free.clear()
    first = held.submit(request_of(0))
    held.model.await_batch()
    waiting = [held.submit(request_of(i), timeout_ms=60.0) for i in range(1, 6)]
    until(lambda: held.counters.batches == {1: 2})  # one of them is read and waits for compute
    time.sleep(0.1)
    assert {type(t.future.exception(PATIENCE_S)) for t in waiting[1:]} == {Expired}
    held.model.free.set()
    assert {type(t.future.exception(PATIENCE_S)) for t in waiting} == {Expired}
    assert first.future.result(PATIENCE_S).error is None
    assert held.model.begun == [[0]]
    assert answers([held.submit(request_of(9))])[0].error is None
    assert held.counters.requests["expired"] == 5


def test_a_request_without_time_expires(held):
    assert isinstance(
        held.submit(request_of(0), timeout_ms=0).future.exception(PATIENCE_S), Expired
    )
    assert held.model.begun == []


def test_a_timeout_is_a_number(held):
    with pytest.raises(ValueError, match="must be a number"):
        held.submit(request_of(0), timeout_ms=float("nan"))
    assert held.status()["admitted"] == 0


def test_a_cancelled_request_never_reaches_the_model(held):
    held.model.free.clear()
    first = held.submit(request_of(0))
    held.model.await_batch()
    waiting = [held.submit(request_of(i)) for i in range(1, 6)]
    until(lambda: held.counters.batches == {1: 2})
    for ticket in waiting[::2]:
        ticket.cancel()
    waiting[1].future.cancel()  # as asyncio does it
    first.cancel()  # too late
    held.model.free.set()
    assert answers([first, waiting[3]])[1].id == 4
    assert all(t.future.cancelled() for t in (*waiting[:3], waiting[4]))
    until(lambda: held.counters.requests["cancelled"] == 4)
    assert held.model.begun == [[0], [4]]
    assert held.status()["admitted"] == 0


def test_no_more_requests_than_are_admitted(index):
    engine = engine_of(index, max_batch=1, contexts=1, max_admitted=3)
    model = engine_model(engine)
    model.free.clear()
    tickets = [engine.submit(request_of(0))]
    model.await_batch()
    tickets += [engine.submit(request_of(i)) for i in (1, 2)]
    for _ in range(3):
        with pytest.raises(Overloaded, match="3 requests, the most allowed") as refused:
            engine.submit(request_of(3))
        assert 0 < refused.value.retry_after_s <= 10
    assert engine.status()["admitted"] == 3
    tickets.pop().cancel()
    tickets.append(engine.submit(request_of(4)))  # its place is free
    other = engine.submit(request_of(5), client="other")  # a flood keeps no other out
    assert isinstance(tickets.pop().future.exception(PATIENCE_S), Overloaded)
    assert engine.counters.admitted == 3
    model.free.set()
    assert [answer.id for answer in answers([*tickets, other])] == [0, 1, 5]
    assert engine.counters.requests["overloaded"] == 4
    answers([engine.submit(request_of(6))])
    assert engine.drain()


def test_draining_answers_those_admitted(held):
    held.model.free.clear()
    tickets = [held.submit(request_of(i)) for i in range(8)]
    drained = []
    thread = threading.Thread(target=lambda: drained.append(held.drain(PATIENCE_S)))
    thread.start()
    until(lambda: held.status()["draining"])
    with pytest.raises(Draining):
        held.submit(request_of(9))
    held.model.free.set()
    thread.join(PATIENCE_S)
    assert drained == [True]
    assert [answer.id for answer in answers(tickets)] == list(range(8))
    assert not [t.name for t in threading.enumerate() if t.name.startswith("compute-")]


def test_draining_has_an_end(held):
    held.model.free.clear()
    tickets = [held.submit(request_of(i)) for i in range(8)]
    until(lambda: held.counters.batches == {1: 2})
    assert not held.drain(0.05)
    assert {type(ticket.future.exception(PATIENCE_S)) for ticket in tickets[2:]} == {Draining}
    held.model.free.set()
    assert [answer.id for answer in answers(tickets[:2])] == [0, 1]


# ---- faults -----------------------------------------------------------------------------------


def test_a_failing_batch_fails_its_own_requests(held):
    held.model.failures = [RuntimeError("no"), ValueError("not again")]
    failed = [held.submit(request_of(i)) for i in range(2)]
    assert [type(t.future.exception(PATIENCE_S)) for t in failed] == [RuntimeError, ValueError]
    assert answers([held.submit(request_of(2))])[0].error is None
    assert held.status()["failed"] is None
    assert held.counters.requests["failed"] == 2


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (torch.OutOfMemoryError, "CUDA out of memory. Tried to allocate 2 GiB."),
        (RuntimeError, "CUDA error: an illegal memory access was encountered"),
    ],
)
def test_a_device_that_fails_is_reported(held, kind, message):
    held.model.failures = [kind(message)]
    assert type(held.submit(request_of(0)).future.exception(PATIENCE_S)) is kind
    until(lambda: held.status()["failed"])
    assert message in held.status()["failed"]
    answers([held.submit(request_of(1))])
    assert held.status()["failed"] is None  # it computes again


def test_a_damaged_log_of_pauses_ends_no_engine(tmp_path):
    build_rows(good_rows(5), SCHEMA, tmp_path)
    engine = engine_of(tmp_path)
    answers([engine.submit(request_of(0))])
    (tmp_path / "pauses.log").write_text("{}\n")
    with pytest.raises(grace.GraceError, match=r"pauses\.log"):
        engine.submit(request_of(1)).future.result(PATIENCE_S)
    assert "pauses.log" in engine.status()["failure"]
    (tmp_path / "pauses.log").unlink()
    assert answers([engine.submit(request_of(2))])[0].error is None
    assert engine.drain()


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("max_batch", 33), ("max_batch", 0), ("contexts", 0), ("contexts", 1.5),
        ("max_admitted", 0), ("max_admitted", True), ("max_wait_ms", -1),
        ("max_wait_ms", float("nan")), ("timeout_ms", float("inf")), ("timeout_ms", "1"),
    ],
)  # fmt: skip
def test_a_wrong_option_is_refused_by_name(option, value):
    with pytest.raises(grace.errors.ConfigError, match=f"{option} must be"):
        EngineOptions(**{option: value})


# ---- versions ---------------------------------------------------------------------------------


def shifted(size):
    """A catalogue whose ads all have other SIDs than in one of another size."""
    return [row | {"sid": [(row["sid"][0] + size) % VOCAB, row["sid"][1]]}
            for row in good_rows(size)]  # fmt: skip


def test_swaps_under_many_threads(tmp_path):
    """Each answer is right for the version it names; no request is lost; old threads end."""
    sizes = (5, 30, 8, 60)
    asked = [request_of(i) for i in range(40)]
    asked[7] = {"id": 7, "extra": 1}
    wanted = {}
    for size in sizes:
        index = build_rows(shifted(size), SCHEMA)
        retriever = grace.Retriever(index, Held(), PLAN)
        wanted[size] = retriever.retrieve(asked)
    version_of = {build_rows(shifted(sizes[0]), SCHEMA, tmp_path).version: sizes[0]}
    engine = engine_of(tmp_path, max_batch=4)
    failures, seen = [], set()
    ended = threading.Event()

    def ask(seed):
        draw = np.random.default_rng(seed)
        try:
            while not ended.is_set():
                numbers = draw.integers(0, len(asked), 6).tolist()
                tickets = [engine.submit(asked[i], client=str(seed)) for i in numbers]
                for number, answer in zip(numbers, answers(tickets), strict=True):
                    assert answer.version == answer.index.version
                    size = version_of[answer.version]
                    assert_same(answer, wanted[size][number], answer.index)
                    seen.add(size)
        except BaseException as failure:
            failures.append(failure)

    threads = [threading.Thread(target=ask, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for turn in range(1, 9):
        size = sizes[turn % 4]
        folder = tmp_path if turn > 4 else None
        if folder is None:  # the id follows from the content: known before anybody answers by it
            version_of[build_rows(shifted(size), SCHEMA, tmp_path / "other").version] = size
        build_rows(shifted(size), SCHEMA, tmp_path, keep=2)
        until(lambda size=size: failures or version_of[engine.index.version] == size)
        until(lambda size=size: failures or size in seen)
        seen.clear()
    ended.set()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert not failures, failures[0]
    assert engine.counters.swaps == 8
    assert engine.counters.version == engine.index.version
    assert not engine_model(engine).violations
    # The version before stays for a rollback.
    until(lambda: len([t for t in threading.enumerate() if t.name.startswith("compute-")]) <= 2)
    assert engine.drain()


def test_an_old_versions_memory_goes_when_a_third_comes(tmp_path):
    """At once, not when garbage is collected: on a GPU two versions may be all that fits."""
    build_rows(good_rows(5), SCHEMA, tmp_path)
    engine = engine_of(tmp_path, small_model(num_levels=2, vocab_size=VOCAB))
    asked = request_of(0, features={})
    gc.collect()
    gc.disable()
    try:
        answers([engine.submit(asked)])
        old = [weakref.ref(engine.retriever), weakref.ref(engine.retriever._path)]
        for size in (30, 60):
            assert all(ref() is not None for ref in old)
            build_rows(good_rows(size), SCHEMA, tmp_path)
            until(lambda size=size: engine.index.num_ads == size)
            answers([engine.submit(asked)])
        until(lambda: [ref() for ref in old] == [None, None])
    finally:
        gc.enable()
    assert engine.drain()


def test_a_version_that_does_not_fit_is_not_moved_to(tmp_path):
    build_rows(good_rows(5), SCHEMA, tmp_path)
    engine = engine_of(tmp_path)
    first = answers([engine.submit(request_of(0))])[0]
    build_rows([{"ad_id": 1, "sid": [1]}], SCHEMA, tmp_path)
    until(lambda: engine.submit(request_of(1)) and engine.status()["failure"])
    assert "one for each token" in engine.status()["failure"]
    assert answers([engine.submit(request_of(0))])[0].version == first.version
    assert engine.drain()


def test_an_ad_paused_before_a_batch_is_in_no_answer(tmp_path):
    index = build_rows(good_rows(20), SCHEMA, tmp_path)
    engine = engine_of(tmp_path)
    asked = request_of(0)
    for ad_id in range(0, 20, 5):
        index.pause([ad_id])
        answer = answers([engine.submit(asked)])[0]
        found = answer.index.take_ad_ids(answer.positions)
        assert set(found) == set(range(20)) - set(range(0, ad_id + 1, 5))
    assert engine.drain()


# ---- what it tells ----------------------------------------------------------------------------


def test_counters(index):
    engine = engine_of(index, retriever={"matching": "valid"}, max_batch=4)
    asked = [request_of(i, attributes={"country": "US", "age": 20 + i}) for i in range(12)]
    found = answers([engine.submit(raw) for raw in asked])
    assert engine.drain()
    counted = engine.counters
    for name, total in counted.funnel.items():
        assert total == sum(answer.funnel[name] for answer in found)
    for name, total in counted.dropped.items():
        assert total == sum(answer.funnel["dropped"][name] for answer in found)
    eligible, expanded = counted.funnel["eligible_ads"], counted.funnel["expanded_ads"]
    assert 0 < eligible < expanded
    assert counted.eligibility_rate == eligible / expanded
    assert counted.stages["queue"].count == 12
    for stage in ("input", "compute", "post"):
        assert counted.stages[stage].count == sum(counted.batches.values())
        assert counted.stages[stage].sum_ms > 0
    assert (counted.swaps, counted.graph_replays, counted.admitted) == (0, 0, 0)


def test_a_timeline_shows_the_stages(tmp_path, index):
    options = EngineOptions(max_batch=2)
    engine = Engine(index, Held(), PLAN, options, timeline=tmp_path / "trace.json")
    answers([engine.submit(request_of(i)) for i in range(6)])
    assert engine.drain()
    spans = [
        event for event in json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
        if event["ph"] == "X"
    ]  # fmt: skip
    batches = {span["args"]["batch"] for span in spans}
    assert len(batches) == sum(engine.counters.batches.values())
    for batch in batches:
        names = [span["name"] for span in spans if span["args"]["batch"] == batch]
        assert sorted(names) == ["compute", "input", "post"]


def test_somebody_elses_model_is_left_alone_until_it_is_asked(index):
    engine = engine_of(index)
    assert engine_model(engine).begun == []
    assert engine.drain()
