"""Retrieval is brute-force beam search under each mode's predicate: SIDs, order, scores, funnel.

Given identical logits, scores are equal bit for bit, so order is exact and no tolerance is in play.
"""

from __future__ import annotations

import pytest
from harness import build, check, check_case, examples, expected, retrieve, run
from hypothesis import given
from strategies import MODES, WIDTHS, Case, cases

LONG_AGO = "2020-01-01T00:00:00Z"


def check_all(case: Case, matching: str, plan=None) -> None:
    check_case(case, build(case), matching, plan)


@pytest.mark.parametrize("matching", ["valid", "bitmask+bloom", "exact"])
@examples(3)
@given(case=cases(max_ads=300, max_vocab=600))
def test_equals_brute_force(matching: str, case: Case):
    """Random catalogues, rules, requests and plans, the plan often wider than the trie."""
    check_all(case, matching)


@examples(2)
@given(case=cases(max_ads=100, max_vocab=16, widths=(1, 2, 3, 31, 33, 129)))
def test_unconstrained_equals_brute_force(case: Case):
    """Mode off goes where the model wants, and drops at the end what is not in the catalogue."""
    check_all(case, "off")


@pytest.mark.parametrize("matching", ["valid", "bitmask+bloom", "exact"])
@pytest.mark.parametrize("width", WIDTHS)
def test_widths_around_thresholds(width: int, matching: str):
    """A trie with more prefixes than the width on all levels but the first; ties at the cut."""
    case = Case(seed=width, num_levels=3, vocab=40, num_ads=3000, num_requests=2, width=width)
    check_all(case.where(style="coarse"), matching)


@pytest.mark.parametrize("width", [33, 129, 513, 1024])
def test_widths_unconstrained(width: int):
    case = Case(seed=width, num_levels=3, vocab=37, num_ads=500, num_requests=1, width=width)
    check_all(case.where(style="coarse"), "off")


@pytest.mark.parametrize("matching", MODES)
@pytest.mark.parametrize("shape", ["uniform", "few", "shared", "dense", "one"])
def test_large_catalogues(shape: str, matching: str):
    """5,000 ads, V = 600; fewer where brute force deals each ad to one of many partitions."""
    width = 64 if matching == "off" else 512
    num_ads = 1000 if matching.endswith("kway") else 5000
    case = Case(seed=5, num_levels=4, vocab=600, num_ads=num_ads, shape=shape, rule_rate=0.5)
    check_all(case.where(width=width, num_requests=3, spare_vocab=7), matching)


@pytest.mark.parametrize("matching", MODES)
@pytest.mark.parametrize("num_levels", [1, 2, 3, 4, 5, 6])
def test_one_ad(num_levels: int, matching: str):
    """A catalogue of one ad: whatever the width, one SID or none."""
    case = Case(num_levels=num_levels, vocab=5, num_ads=1, rule_rate=0.2, num_requests=12)
    for width in (1, 7):
        check_all(case.where(width=width), matching)


@pytest.mark.parametrize("matching", MODES)
def test_all_scores_equal(matching: str):
    """Constant logits: the answer is the first SIDs in order, at every width."""
    case = Case(num_levels=3, vocab=6, num_ads=150, style="constant", rule_rate=0.2)
    for width in (1, 2, 5, 17, 33, 200):
        check_all(case.where(width=width), matching)


@pytest.mark.parametrize("matching", MODES)
def test_infinite_holes(matching: str):
    """-inf is never chosen, not even when beams are left over; rows of -inf die."""
    for seed in range(20):
        check_all(Case(seed=seed, vocab=4, num_ads=40, style="holes", width=33), matching)
        check_all(Case(seed=seed, vocab=2, num_ads=8, num_levels=6, style="holes"), matching)


@pytest.mark.parametrize("matching", MODES)
def test_dead_from_the_start(matching: str):
    """No finite logit at the first step: an empty list, no error, and neighbours do not notice."""
    case = Case(num_ads=50, num_requests=3, rule_rate=0.0, top_k=False)
    dead = {"id": "dead", "features": {"style": "dead"}, "at": case.requests[0]["at"]}
    results = retrieve(
        build(case), case.generator, [case.requests[0], dead, case.requests[1]], matching, case.plan
    )
    assert results[1].error is None
    assert results[1].ads == []
    assert results[1].funnel["generated_sids"] == 0
    check(results[0], expected(case, case.requests[0], matching))
    check(results[2], expected(case, case.requests[1], matching))


@pytest.mark.parametrize("matching", MODES)
def test_nothing_eligible(matching: str):
    """Every ad refuses: an empty list, never a filler."""
    case, ended = Case(num_ads=50, rule_rate=0.0, top_k=False), {"start": None, "end": LONG_AGO}
    case = case.where(rows=[row | ended for row in case.ads])
    for result in run(case, matching):
        assert result.error is None
        assert result.ads == []
        assert result.funnel["eligible_sids"] == 0
    check_all(case, matching)


@pytest.mark.parametrize("matching", MODES)
def test_paths_do_not_cross(matching: str):
    """(0, 2, 1) and (3, 2, 0) do not make (0, 2, 0): a prefix is more than its last token."""
    rows = [{"ad_id": 1, "sid": [0, 2, 1]}, {"ad_id": 2, "sid": [3, 2, 0]}]
    case = Case(vocab=4, rows=rows, style="constant", top_k=False)
    check_all(case, matching, case.full_plan)
    for result in run(case, matching, case.full_plan):
        assert [(ad.ad_id, tuple(ad.sid)) for ad in result.ads] == [(1, (0, 2, 1)), (2, (3, 2, 0))]
