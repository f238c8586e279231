"""Requests in threads while versions come and go and ads are paused: one version, no paused ad."""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from harness import build_rows
from model_cases import random_features, small_model
from table_generator import TableGenerator
from test_faults_rows import SCHEMA, good_rows

import grace
from grace.errors import GraceError, IndexFormatError
from grace.index.versions import list_versions, rollback
from grace.retrieve import FollowingRetriever

VOCAB, PLAN = 7, grace.BeamPlan((1, 99), 99)
REQUESTS = [
    {"id": number, "attributes": {"country": "US", "age": 20}, "features": {"seed": number}}
    for number in range(3)
]
SIZES = (5, 30, 8, 100)


def shifted(size: int) -> list[dict]:
    """A catalogue whose ads all have other SIDs than in one of another size."""
    return [row | {"sid": [(row["sid"][0] + size) % VOCAB, row["sid"][1]]}
            for row in good_rows(size)]  # fmt: skip


def answers(results: list) -> list[frozenset]:
    assert [result.error for result in results] == [None] * len(results)
    return [frozenset((ad.ad_id, tuple(ad.sid)) for ad in result.ads) for result in results]


def whole(size: int) -> frozenset:
    return frozenset((row["ad_id"], tuple(row["sid"])) for row in shifted(size))


def following(folder: Path, **options) -> FollowingRetriever:
    return FollowingRetriever(folder, TableGenerator(VOCAB), plan=PLAN, **options)


def in_threads(seconds: float, *bodies: Callable[[], None]) -> None:
    """Repeat each body in a thread of its own until the time is over, or one has failed."""
    failures: list[BaseException] = []
    end = time.monotonic() + seconds

    def repeat(body: Callable[[], None]) -> None:
        try:
            while time.monotonic() < end and not failures:
                body()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=repeat, args=(body,)) for body in bodies]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


@pytest.mark.parametrize("matching", ["exact", "valid", "bitmask+bloom"])
def test_every_answer_is_of_one_version(tmp_path: Path, matching: str):
    """Versions are published, rolled back and removed meanwhile; no request is lost."""
    build_rows(shifted(SIZES[0]), SCHEMA, tmp_path)
    # A generator keeps state between its calls: each thread has its own retriever.
    retrievers = [following(tmp_path, matching=matching, batch_size=2) for _ in range(2)]
    expected, seen = {whole(size): size for size in SIZES}, set()
    sizes = itertools.cycle(SIZES)

    def ask(retriever: FollowingRetriever) -> None:
        found = answers(retriever.retrieve(REQUESTS))
        assert len(set(found)) == 1  # also over the batches of one call
        seen.add(expected[found[0]])

    def publish() -> None:
        build_rows(shifted(next(sizes)), SCHEMA, tmp_path, keep=2)
        if len(list_versions(tmp_path)) > 1 and random.random() < 0.5:
            rollback(tmp_path, list_versions(tmp_path)[1].version, keep=1)

    in_threads(4, publish, *(lambda r=r: ask(r) for r in retrievers))
    build_rows(shifted(SIZES[1]), SCHEMA, tmp_path)
    for retriever in retrievers:
        retriever.reader.refresh()
        assert set(answers(retriever.retrieve(REQUESTS))) == {whole(SIZES[1])}
        assert retriever.reader.failure is None
    assert len(seen) > 1


@pytest.mark.parametrize("matching", ["exact", "dynamic-kway"])
def test_threads_share_a_retriever_of_graces_own_model(tmp_path: Path, matching: str):
    """Its searches share memory: one runs at a time, and none mixes what two were asked."""
    build_rows(shifted(SIZES[0]), SCHEMA, tmp_path)
    model = small_model(num_levels=2, vocab_size=VOCAB)
    retriever = FollowingRetriever(
        tmp_path, model, plan=PLAN, matching=matching, batch_size=2, table_bytes=10**6
    )
    draw, memory = np.random.default_rng(0), {}
    requests = [request | {"features": random_features(draw)} for request in REQUESTS]
    for size in SIZES:
        index = build_rows(shifted(size), SCHEMA)
        alone = grace.Retriever(index, model, PLAN, matching, batch_size=2)
        memory[whole(size)] = [result.sids for result in alone.retrieve(requests)]
    sizes, seen = itertools.cycle(SIZES), set()

    def ask() -> None:
        results = retriever.retrieve(requests, trace=True)
        (version,) = set(answers(results))
        seen.add(version)
        for result, sids in zip(results, memory[version], strict=True):
            assert [sid for sid, _ in result.sids] == [sid for sid, _ in sids]
            scores = [score for _, score in sids]
            assert [score for _, score in result.sids] == pytest.approx(scores, abs=1e-5)

    def publish() -> None:
        build_rows(shifted(next(sizes)), SCHEMA, tmp_path, keep=2)
        time.sleep(0.02)

    in_threads(3, publish, ask, ask, ask)
    assert retriever.reader.failure is None
    assert len(seen) > 1


@pytest.mark.parametrize("matching", ["exact", "valid"])
def test_no_ad_that_was_off_when_the_batch_began(tmp_path: Path, matching: str):
    """Ads go on and off through handles of their own, while versions are published."""
    build_rows(shifted(30), SCHEMA, tmp_path)
    lock, off, running = threading.Lock(), set(), {}

    def ask(retriever: FollowingRetriever) -> None:
        touched: set[int] = set()
        with lock:
            before = set(off)
            running[id(touched)] = touched
        found = answers(retriever.retrieve(REQUESTS))
        with lock:
            del running[id(touched)]
        for answer in found:
            assert not {ad_id for ad_id, _ in answer} & (before - touched)

    def switch(index: grace.Index, mine: range, stop: str, go: str, rng: random.Random) -> None:
        some = rng.sample(mine, 5)
        getattr(index, stop)(some)
        with lock:
            off.update(some)
        time.sleep(rng.random() / 50)
        others = rng.sample(mine, 5)
        with lock:
            off.difference_update(others)
            for touched in running.values():
                touched.update(others)
        getattr(index, go)(others)

    def publish() -> None:
        build_rows(shifted(random.choice((30, 40))), SCHEMA, tmp_path)
        time.sleep(0.05)

    handles = [grace.Index.open(tmp_path) for _ in range(2)]
    first, second = random.Random(1), random.Random(2)
    retrievers = [following(tmp_path, matching=matching) for _ in range(2)]
    in_threads(
        4,
        publish,
        lambda: switch(handles[0], range(15), "pause", "resume", first),
        lambda: switch(handles[1], range(15, 30), "bid_off", "bid_on", second),
        *(lambda r=r: ask(r) for r in retrievers),
    )
    rows = {row["ad_id"] for row in shifted(30)}
    fresh = grace.Index.open(tmp_path)
    dead = {ad_id for ad_id in rows if fresh.ad_state[fresh.find_ads([ad_id])].any()}
    assert dead == off


def test_threads_on_one_index(tmp_path: Path):
    """One handle, paused and asked by several threads at once, without a directory to log to."""
    index = build_rows(shifted(30), SCHEMA)
    lock, off = threading.Lock(), set()

    def ask(retriever: grace.Retriever) -> None:
        with lock:  # nobody resumes: what is off stays off
            before = set(off)
        for answer in answers(retriever.retrieve(REQUESTS)):
            assert not {ad_id for ad_id, _ in answer} & before

    def pause(ads: list[int]) -> None:
        if not ads:
            return time.sleep(0.01)
        some = [ads.pop()]
        index.pause(some)
        with lock:
            off.update(some)
        return time.sleep(0.05)

    retrievers = [grace.Retriever(index, TableGenerator(VOCAB), PLAN) for _ in range(2)]
    halves = [list(range(part, 30, 2)) for part in range(2)]
    in_threads(
        2, *(lambda h=h: pause(h) for h in halves), *(lambda r=r: ask(r) for r in retrievers)
    )
    assert {position for position in range(30) if index.ad_state[index.find_ads([position])]} == off


def test_a_batch_keeps_the_version_it_began_with(tmp_path: Path):
    """Published in the middle of a call: the next call sees it, this one does not."""
    build_rows(shifted(5), SCHEMA, tmp_path)

    class Publishing(TableGenerator):
        def start(self, features: list[dict]):
            build_rows(shifted(8), SCHEMA, tmp_path, keep=1)
            retriever.reader.refresh()
            return super().start(features)

    retriever = FollowingRetriever(tmp_path, Publishing(VOCAB), plan=PLAN, batch_size=1)
    assert answers(retriever.retrieve(REQUESTS)) == [whole(5)] * 3
    assert answers(retriever.retrieve(REQUESTS)) == [whole(8)] * 3


def test_a_version_that_cannot_serve_is_not_moved_to(tmp_path: Path):
    """Damaged, or too large for the model: the reader says why and answers from the old one."""
    build_rows(shifted(5), SCHEMA, tmp_path)
    retriever = following(tmp_path)
    reader = retriever.reader
    damaged = build_rows(shifted(8), SCHEMA, tmp_path).version
    arrays = tmp_path / "versions" / damaged / "arrays.safetensors"
    content = arrays.read_bytes()
    arrays.write_bytes(content[:-8])
    with pytest.raises(IndexFormatError, match="arrays"):
        reader.refresh()
    assert answers(retriever.retrieve(REQUESTS)) == [whole(5)] * 3
    build_rows([row | {"sid": [1, 2, 3]} for row in good_rows(4)], SCHEMA, tmp_path)
    with pytest.raises(GraceError, match="plan"):
        reader.refresh()
    deadline = time.monotonic() + 60
    reader._tried = None
    while reader.failure is None and time.monotonic() < deadline:
        assert answers(retriever.retrieve(REQUESTS)) == [whole(5)] * 3
        time.sleep(0.01)
    assert "plan" in str(reader.failure)
    rollback(tmp_path, list_versions(tmp_path)[-1].version)
    assert answers(retriever.retrieve(REQUESTS)) == [whole(5)] * 3
    assert reader.failure is None


def test_a_reader_sees_the_states_that_any_process_changed(tmp_path: Path):
    build_rows(good_rows(4), SCHEMA, tmp_path)
    reader = grace.Index.follow(tmp_path)
    old = reader.current
    grace.Index.open(tmp_path).pause([1])
    assert reader.current.ad_state.tolist() == old.ad_state.tolist()
    assert int(reader.current.ad_state.sum()) == 1
    build_rows(good_rows(6), SCHEMA, tmp_path)
    fresh = reader.refresh()
    old.bid_off([2])
    assert reader.current is fresh
    assert fresh.ad_state[fresh.find_ads([1, 2])].tolist() == [1, 2]
    assert reader.prepared is fresh


def test_no_directory_to_follow(tmp_path: Path):
    with pytest.raises(IndexFormatError, match="holds no index"):
        grace.Index.follow(tmp_path)
