"""Invariant 2: no matcher ever says a false no, and `exact` never a false yes."""

from __future__ import annotations

import oracle
import pytest
from harness import (
    build,
    build_rows,
    eligible_ids,
    examples,
    expected,
    found,
    retrieve,
    run,
    union_matcher,
)
from hypothesis import given
from hypothesis import strategies as st
from strategies import MODES, NOON, Case, cases
from table_generator import TableGenerator

from grace.index.bloom import bloom_bits

small = cases(max_ads=40, max_vocab=4, num_requests=4, top_k=False).map(
    lambda case: case.where(
        vocab=min(case.vocab, 4),
        spare_vocab=min(case.spare_vocab, 1),
        num_levels=case.num_levels % 4 + 1,
    )
)


def finite(case: Case) -> Case:
    return case.where(style="smooth" if case.style == "holes" else case.style)


def test_toy_example():
    """GRACE, equations 6 and 7: US + 18-24 and CA + 25-34 under one node, asked by US + 30."""
    schema = [{"name": "country", "kind": "categorical"}, {"name": "age", "kind": "range"}]
    ads = [
        {"ad_id": 1, "sid": [0, 0], "rules": _rules("US", 18, 24)},
        {"ad_id": 2, "sid": [0, 1], "rules": _rules("CA", 25, 34)},
        {"ad_id": 3, "sid": [1, 0], "rules": _rules("UK", 18, 24)},
    ]
    request = {
        "id": "toy",
        "attributes": {"country": "US", "age": 30},
        "features": {"style": "constant"},
        "at": NOON.isoformat(),
    }
    index, plan = build_rows(ads, schema), ((1, 2), 4)
    live = {}
    for matching in ("valid", "bitmask+bloom", "exact"):
        (result,) = retrieve(index, TableGenerator(2), [request], matching, plan, trace=True)
        assert result.ads == []
        assert result.funnel["generated_sids"] == (3 if matching == "valid" else 0)
        live[matching] = [(step.live, step.wasted) for step in result.trace.steps]
    assert live == {
        "valid": [(1, 1), (2, 2)],
        "bitmask+bloom": [(1, 1), (1, 1)],  # the node is kept; each SID below it is refused
        "exact": [(0, 0), (0, 0)],
    }


def _rules(country: str, low: int, high: int) -> dict:
    return {"country": {"include": [country]}, "age": {"min": low, "max": high}}


@pytest.mark.parametrize("matching", MODES)
@examples(2)
@given(case=small.map(finite))
def test_a_plan_over_the_whole_trie_returns_all_eligible_ads(matching: str, case: Case):
    """Nothing is cut, so a missing ad would be a false no; all modes give the same list."""
    results = run(case, matching, case.full_plan)
    reference = run(case, "valid", case.full_plan)
    for request, result, same in zip(case.requests, results, reference, strict=True):
        ids = [ad.ad_id for ad in result.ads]
        assert sorted(map(str, ids)) == sorted(map(str, eligible_ids(case, request)))
        assert found(result) == found(same)


@pytest.mark.parametrize("matching", ["valid", "bitmask+bloom", "exact"])
@given(case=cases(max_ads=300, max_vocab=600, style="smooth", top_k=False))
def test_a_plan_over_the_catalogue_returns_all_eligible_ads(matching: str, case: Case):
    results = run(case, matching, case.trie_plan)
    for request, result in zip(case.requests, results, strict=True):
        ids = [ad.ad_id for ad in result.ads]
        assert len(ids) == len(set(ids))
        assert set(ids) == set(eligible_ids(case, request))


@pytest.mark.parametrize("num_bits", [64, 256, 1024])
@given(case=cases(max_ads=60, max_vocab=4, style="smooth", attributes=5, num_places=60))
def test_any_bloom_width(num_bits: int, case: Case):
    """A full Bloom filter lets more through, never less, and exactly what its bits say."""
    index = build(case, bloom_bits=num_bits)
    union = union_matcher(case, num_bits)
    results = retrieve(index, case.generator, case.requests, "bitmask+bloom", case.trie_plan)
    for request, result in zip(case.requests, results, strict=True):
        want = expected(case, request, "bitmask+bloom", case.trie_plan, union)
        assert [tuple(sid) for sid, _ in result.sids] == [sid for sid, _ in want.sids]
        assert found(result) == [(ad_id, sid, float(score)) for ad_id, sid, score in want.ads]


@given(value=st.text(st.characters(codec="utf-8")), num_hashes=st.integers(1, 8))
def test_bloom_bits_are_in_range_and_stable(value: str, num_hashes: int):
    for num_bits in (64, 256, 512):
        bits = list(bloom_bits(value, num_bits, num_hashes))
        assert bits == list(bloom_bits(value, num_bits, num_hashes))
        assert 1 <= len(set(bits)) <= num_hashes
        assert all(0 <= bit < num_bits for bit in bits)


def test_bloom_bits_spread():
    """Values are told apart: over 2,000 values every bit is used about equally often."""
    hits = [0] * 256
    for number in range(2000):
        for bit in set(bloom_bits(f"place {number}", 256, 4)):
            hits[bit] += 1
    assert min(hits) > 10
    assert max(hits) < 65


@examples(2)
@given(case=cases(max_ads=300, max_vocab=64, top_k=False))
def test_exact_wastes_nothing(case: Case):
    """Every live beam has an eligible ad below it, every SID one on it; the counts say so."""
    results = run(case, "exact", trace=True)
    for request, result in zip(case.requests, results, strict=True):
        want = expected(case, request, "exact")
        assert [step.live for step in result.trace.steps] == want.live
        assert [step.wasted for step in result.trace.steps] == [0] * case.num_levels
        assert result.funnel["eligible_sids"] == result.funnel["generated_sids"] == len(want.sids)
        eligible = oracle.eligible_prefixes(case.ads, request, case.schema)
        assert {tuple(sid) for sid, _ in result.sids} <= eligible


@pytest.mark.parametrize("matching", ["off", "valid", "bitmask+bloom"])
@given(case=cases(max_ads=100, max_vocab=12, widths=(1, 3, 33)))
def test_trace_counts_waste(matching: str, case: Case):
    """Per step: beams that enter it, and those of them without an eligible ad below."""
    results = run(case, matching, trace=True)
    union = union_matcher(case)
    for request, result in zip(case.requests, results, strict=True):
        want = expected(case, request, matching, union=union)
        assert [step.live for step in result.trace.steps] == want.live
        assert [step.wasted for step in result.trace.steps] == want.wasted
