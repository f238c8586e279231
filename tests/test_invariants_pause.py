"""Pauses and bids: ad by ad, no rebuild, in the next answer, and still there after a reopen."""

from __future__ import annotations

import pytest
from harness import build, check, check_case, examples, expected, retrieve
from hypothesis import given
from hypothesis import strategies as st
from strategies import MODES, Case, cases

import grace
from grace.index import state_log

pausable = cases(max_ads=40, max_vocab=6, widths=(1, 3, 33), style="smooth", rule_rate=0.2)


def paused(case: Case, ids: set, off: set = frozenset()) -> Case:
    """The same catalogue with exactly these ads paused, and the bids of those off."""
    states = [{"paused": row["ad_id"] in ids, "bid_off": row["ad_id"] in off} for row in case.ads]
    return case.where(rows=[row | state for row, state in zip(case.ads, states, strict=True)])


@examples(2)
@given(case=pausable, data=st.data())
def test_changes_take_effect_and_survive(tmp_path_factory, case: Case, data):
    """A random walk against the oracle, some steps through a fresh `open` or a compacted log."""
    folder = tmp_path_factory.mktemp("index")
    index = build(case, out=folder)
    ids, off = {row["ad_id"] for row in case.ads if row.get("paused")}, set()
    everything = [row["ad_id"] for row in case.ads]
    for _ in range(5):
        some = data.draw(st.lists(st.sampled_from(everything), max_size=5))
        change = data.draw(st.sampled_from(("pause", "resume", "bid_off", "bid_on")))
        getattr(index, change)(some)
        if change in ("pause", "bid_off"):
            (ids if change == "pause" else off).update(some)
        else:
            (ids if change == "resume" else off).difference_update(some)
        if data.draw(st.booleans()):
            state_log.compact(folder)
        if data.draw(st.booleans()):
            index = grace.Index.open(folder)
        check_case(paused(case, ids, off), index, data.draw(st.sampled_from(MODES)))
    check_case(paused(case, ids, off), grace.Index.open(folder), "exact")


def test_an_open_retriever_sees_a_pause():
    """No retriever has to be made anew: the next `retrieve` sees it."""
    case = Case(num_ads=30, rule_rate=0.0, width=33, top_k=False)
    index = build(case)
    retriever = grace.Retriever(index, case.generator, plan=grace.BeamPlan(*case.plan))
    ids = {row["ad_id"] for row in case.ads if row.get("paused")}
    for change, touched in (("pause", 3), ("pause", 17), ("resume", 3)):
        ad_id = case.ads[touched]["ad_id"]
        getattr(index, change)([ad_id])
        ids = ids | {ad_id} if change == "pause" else ids - {ad_id}
        now = paused(case, ids)
        for request, result in zip(now.requests, retriever.retrieve(now.requests), strict=True):
            check(result, expected(now, request, "exact"))


@pytest.mark.parametrize("matching", MODES)
def test_everything_paused(matching: str, tmp_path):
    case = Case(num_ads=30, rule_rate=0.0, ids="str", top_k=False)
    index = build(case, out=tmp_path / "index")
    index.pause([row["ad_id"] for row in case.ads])
    check_case(paused(case, {row["ad_id"] for row in case.ads}), index, matching)
    index = grace.Index.open(tmp_path / "index")
    check_case(paused(case, {row["ad_id"] for row in case.ads}), index, matching)
    index.resume([row["ad_id"] for row in case.ads])
    check_case(paused(case, set()), grace.Index.open(tmp_path / "index"), matching)


def test_conservative_matchers_ignore_pauses():
    """A paused ad can come back: its bits stay, its SID is generated, the filter drops it."""
    case = Case(rows=[{"ad_id": 1, "sid": [0, 1]}], num_levels=2, top_k=False)
    index = build(case)
    index.pause([1])
    for matching, generated in (("valid", 1), ("bitmask+bloom", 1), ("exact", 0)):
        results = retrieve(index, case.generator, case.requests, matching, case.plan)
        for result in results:
            assert result.ads == []
            assert result.funnel["generated_sids"] == generated


@pytest.mark.parametrize("change", ["pause", "resume", "bid_off", "bid_on"])
@pytest.mark.parametrize("ids", [["absent"], [10**6], [0, "absent"], "a", [None], [1.5]])
def test_an_unknown_ad_is_named_and_nothing_changes(change: str, ids):
    """Bad input is a clear error, and one bad id leaves the good ones as they were."""
    case = Case(rows=[{"ad_id": n, "sid": [0]} for n in range(3)], num_levels=1, top_k=False)
    index = build(case)
    with pytest.raises((grace.errors.GraceError, ValueError, TypeError, KeyError)):
        getattr(index, change)(ids)
    check_case(case, index, "exact")


def test_pauses_of_one_handle_reach_another_on_reopen(tmp_path):
    """Two handles on one directory append to one log."""
    case = Case(
        rows=[{"ad_id": n, "sid": [n]} for n in range(4)], num_levels=1, vocab=4, top_k=False
    )
    build(case, out=tmp_path / "index")
    first, second = (grace.Index.open(tmp_path / "index") for _ in range(2))
    first.pause([0])
    second.pause([1])
    first.pause([2])
    second.resume([2])
    check_case(paused(case, {0, 1}), grace.Index.open(tmp_path / "index"), "exact")
