"""Invariants 3 to 5 across a batch: neighbours change nothing, a bad request fails alone."""

from __future__ import annotations

import numpy as np
import oracle
import pytest
import torch
from harness import (
    UNION_MODES,
    build,
    check,
    check_case,
    check_failed,
    examples,
    expected,
    found,
    retrieve,
    union_matcher,
)
from hypothesis import given
from hypothesis import strategies as st
from strategies import MODES, Case, cases


@pytest.mark.parametrize("matching", MODES)
@given(case=cases(max_ads=100, max_vocab=16, widths=(1, 3, 33, 129), num_requests=5))
def test_alone_or_together(matching: str, case: Case):
    """Each request alone, all at once, in reverse, by threes: the same bits."""
    index = build(case)

    def ask(requests, batch_size=16):
        results = retrieve(
            index, case.generator, requests, matching, case.plan, batch_size=batch_size
        )
        return [result.to_dict() for result in results]

    together = ask(case.requests)
    assert [line for request in case.requests for line in ask([request])] == together
    assert ask(case.requests[::-1]) == together[::-1]
    assert ask(case.requests, batch_size=3) == together


@pytest.mark.parametrize("matching", ["valid", "bitmask+bloom", "exact"])
@pytest.mark.parametrize("num_requests", [31, 32, 33, 64, 65, 100])
def test_batches_around_a_word(num_requests: int, matching: str):
    """Eligibility is decided for 32 requests in a word; more requests are more batches."""
    case = Case(num_ads=200, vocab=6, num_requests=num_requests, width=16, style="coarse")
    check_case(case, build(case), matching, batch_size=32)


def test_no_requests():
    case = Case()
    assert retrieve(build(case), case.generator, [], "exact", case.plan) == []


def test_same_request_twice():
    """Two requests may share an id and be equal; both are answered."""
    case = Case(num_ads=50, rule_rate=0.2)
    first = case.requests[0]
    one, two = retrieve(build(case), case.generator, [first, dict(first)], "exact", case.plan)
    assert one.to_dict() == two.to_dict()


@pytest.mark.parametrize("matching", MODES)
@pytest.mark.parametrize("bad", ["nan", "inf"])
@examples(2)
@given(
    case=cases(max_ads=60, max_vocab=8, widths=(1, 3, 33), rule_rate=0.2, num_requests=4),
    step=st.integers(0, 5),
)
def test_nan_and_infinity_fail_their_request_alone(matching: str, bad: str, case: Case, step: int):
    """A NaN or +inf in a live row fails the request, whatever the token; in a dead row never."""
    case = case.where(num_levels=max(case.num_levels, step + 1))
    poison = {"bad": bad, "bad_step": step}
    requests = [
        request | {"features": request["features"] | poison} if number == 1 else request
        for number, request in enumerate(case.requests)
    ]
    results = retrieve(build(case), case.generator, requests, matching, case.plan)
    for request, result in zip(requests, results, strict=True):
        if request is requests[1] and nothing_to_search(case, request, matching):
            assert result.ads == []  # whether the model's first row counts is nobody's business
            continue
        check(result, expected(case, request, matching))


def nothing_to_search(case: Case, request: dict, matching: str) -> bool:
    union = union_matcher(case, matching=matching) if matching in UNION_MODES else None
    allowed = oracle.allowed_prefixes(case.ads, request, case.schema, matching, union)
    return allowed is not None and len(allowed) <= 1


@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
def test_logits_of_dead_rows_are_ignored(poison: float):
    """Two SIDs, eight beams: six rows are padding, whatever the model writes there."""

    class Poisoned:
        """Row 0 and 1 are the live ones, best first; the rest is garbage."""

        def start(self, features):
            return len(features)

        def step(self, batch, parents, tokens):
            beams = 1 if tokens is None else tokens.shape[1]
            logits = torch.tensor([3.0, 2.0, 1.0]).repeat(batch, beams, 1)
            logits[:, 2:] = poison
            return logits

    rows = [{"ad_id": 1, "sid": [0, 1, 0]}, {"ad_id": 2, "sid": [2, 0, 1]}]
    case = Case(rows=rows, num_requests=3, top_k=False)
    results = retrieve(build(case), Poisoned(), case.requests, "valid", ((1, 8, 8), 8))
    for result in results:
        assert result.error is None
        assert [ad.ad_id for ad in result.ads] == [1, 2]


BAD_REQUESTS = [
    ("attributes", {"attributes": {"age": "thirty"}}),
    ("attributes", {"attributes": {"age": True}}),
    ("attributes", {"attributes": {"age": float("nan")}}),
    ("attributes", {"attributes": {"age": [30, 40]}}),
    ("attributes", {"attributes": {"country": ["US", "CA"]}}),
    ("attributes", {"attributes": {"country": {"include": ["US"]}}}),
    ("attributes", {"attributes": {"places": [["a"]]}}),
    ("attributes", {"attributes": {"places": {"a": 1}}}),
    ("attributes", {"attributes": ["country"]}),
    ("attributes", {"attributes": {"places": ["a", None]}}),
    ("attributes", {"attributes": {"country": 1.5}}),
    ("attributes", {"attributes": {"country": "\ud800"}}),  # half a character is no UTF-8
    ("attributes", {"attributes": {"planet": "Mars"}}),
    ("colour", {"colour": "red"}),
    ("at", {"at": "yesterday"}),
    ("at", {"at": "2026-03-01T12:00:00"}),  # no zone
    ("at", {"at": "2026-02-30T12:00:00Z"}),
    ("at", {"at": 12}),
    ("top_k", {"top_k": -1}),
    ("top_k", {"top_k": 1.5}),
    ("top_k", {"top_k": "10"}),
    ("top_k", {"top_k": True}),
    ("features", {"features": [1, 2]}),
]


@pytest.mark.parametrize(("field", "change"), BAD_REQUESTS, ids=lambda value: str(value)[:40])
def test_a_bad_request_fails_alone(field: str, change: dict):
    case = Case(seed=10, num_ads=60, rule_rate=0.2, num_requests=3)
    assert {a["name"] for a in case.schema} == {"country", "gender", "age", "places", "interests"}
    bad = case.requests[1] | change
    index = build(case)
    results = retrieve(
        index, case.generator, [case.requests[0], bad, case.requests[2]], "exact", case.plan
    )
    check_failed(results[1], field)
    check(results[0], expected(case, case.requests[0], "exact"))
    check(results[2], expected(case, case.requests[2], "exact"))


@pytest.mark.parametrize("junk", [None, 5, "request", [], [{}]])
def test_a_request_that_is_no_object_fails_alone(junk):
    import grace

    case = Case(num_ads=60, rule_rate=0.2, num_requests=2)
    retriever = grace.Retriever(build(case), case.generator, plan=grace.BeamPlan(*case.plan))
    first, broken, second = retriever.retrieve([case.requests[0], junk, case.requests[1]])
    assert broken.error is not None
    assert broken.ads == []
    check(first, expected(case, case.requests[0], "exact"))
    check(second, expected(case, case.requests[1], "exact"))


def test_only_bad_requests():
    case = Case()
    results = retrieve(build(case), case.generator, [{"id": 1, "at": 5}] * 3, "exact", case.plan)
    for result in results:
        check_failed(result, "at")


def test_one_narrow_request_does_not_shrink_its_neighbours():
    """A request with one eligible SID among requests with hundreds."""
    case = Case(num_ads=400, vocab=8, rule_rate=0.0, num_requests=3, width=129, top_k=False)
    rows = [row | {"rules": {"country": {"include": ["US"]}}} for row in case.ads]
    rows[7]["rules"] = {"country": {"include": ["CA"]}}
    case = case.where(rows=rows, attributes=5)
    asked = [
        request | {"attributes": {"country": country}}
        for request, country in zip(case.requests, ("US", "CA", "US"), strict=True)
    ]
    check_case(case, build(case), "exact", requests=asked)
    results = retrieve(build(case), case.generator, asked, "exact", case.plan)
    assert [len(found(result)) > 1 for result in results] == [True, False, True]
