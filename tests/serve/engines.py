"""Engines for tests: a model that can be held, and what each request must be answered with."""

from __future__ import annotations

import threading

import numpy as np
from table_generator import TableGenerator

from grace import BeamPlan
from grace.serve import Engine, EngineOptions

VOCAB, PLAN = 7, BeamPlan((1, 7), 30)
PATIENCE_S = 20.0


class Held(TableGenerator):
    """A model that begins a batch only when `free` is set, and knows whose it has begun.

    Attributes:
        begun: `features["seed"]` of every request that reached it, by batch.
        failures: errors to raise instead, first one first.
    """

    def __init__(self, vocab: int = VOCAB):
        super().__init__(vocab)
        self.free, self.arrived = threading.Event(), threading.Semaphore(0)
        self.free.set()
        self.begun: list[list[int]] = []
        self.failures: list[Exception] = []
        self.inside = threading.Lock()

    def start(self, features):
        assert self.inside.acquire(blocking=False), "two threads in one model"
        try:
            self.begun.append([row.get("seed", 0) for row in features])
            self.arrived.release()
            assert self.free.wait(PATIENCE_S)
            if self.failures:
                raise self.failures.pop(0)
            return super().start(features)
        finally:
            self.inside.release()

    def await_batch(self):
        """Wait until a batch has reached it."""
        assert self.arrived.acquire(timeout=PATIENCE_S)


def engine_of(index, model=None, plan=PLAN, retriever=None, **options):
    """An engine with patient requests."""
    options = EngineOptions(**({"timeout_ms": PATIENCE_S * 1e4} | options))
    return Engine(index, model or Held(), plan, options, **(retriever or {}))


def request_of(number, **more):
    """A request that TableGenerator answers by its number, and `good_rows` have ads for."""
    attributes = {"country": "US", "age": 20}
    return {"id": number, "features": {"seed": number}, "attributes": attributes} | more


def answers(tickets):
    """What the tickets' futures give."""
    return [ticket.future.result(PATIENCE_S) for ticket in tickets]


def assert_same(answer, result, index):
    """An engine's answer has what a retriever's result has, bit for bit."""
    assert answer.id == result.id
    if result.error is not None:
        assert {"field": answer.error.field, "message": answer.error.message} == result.error
        assert len(answer.positions) == len(answer.sids) == len(answer.scores) == 0
        return
    assert answer.error is None
    assert index.take_ad_ids(answer.positions) == [ad.ad_id for ad in result.ads]
    assert answer.sids.tolist() == [list(ad.sid) for ad in result.ads]
    assert answer.scores.dtype == np.float32
    assert answer.scores.tolist() == [ad.score for ad in result.ads]
    assert answer.funnel == result.funnel
