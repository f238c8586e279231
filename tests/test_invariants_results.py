"""What a result says: order, ids, top_k, no duplicates, its line; what a plan and a V may be."""

from __future__ import annotations

import json

import pytest
from harness import build, build_rows, check, check_case, examples, expected, found, retrieve, run
from hypothesis import given
from hypothesis import strategies as st
from oracle import id_order
from strategies import MODES, NOON, Case, cases
from table_generator import TableGenerator

import grace

COUNTRY = [{"name": "country", "kind": "categorical"}]


@pytest.mark.parametrize("matching", MODES)
@given(case=cases(max_ads=300, max_vocab=12, widths=(1, 3, 33)))
def test_nothing_twice_and_in_order(matching: str, case: Case):
    """By (score descending, SID, ad id); no ad and no SID twice; only catalogue SIDs."""
    in_catalog = {(row["ad_id"], tuple(row["sid"])) for row in case.ads}
    for result in run(case, matching):
        ads = found(result)
        assert ads == sorted(ads, key=lambda ad: (-ad[2], ad[1], id_order(ad[0])))
        assert len({ad_id for ad_id, _, _ in ads}) == len(ads)
        assert {(ad_id, sid) for ad_id, sid, _ in ads} <= in_catalog
        sids = [tuple(sid) for sid, _ in result.sids]
        assert len(set(sids)) == len(sids) <= case.plan[1]


@pytest.mark.parametrize(
    "ids",
    [
        ["B", "a", "é", "z", "日", "\U0001f600", "￮", "10", "9", "a ", "A"],
        [3, -5, 0, 10, 9, -(1 << 63), (1 << 63) - 1, 1 << 53, (1 << 53) + 1],
    ],
    ids=["strings", "integers"],
)
def test_ids_order_by_bytes_or_value(ids):
    rows = [{"ad_id": ad_id, "sid": [0]} for ad_id in ids]
    request = {"id": 0, "features": {}}
    (result,) = retrieve(
        build_rows(rows, COUNTRY), TableGenerator(1), [request], "exact", ((1,), 1)
    )
    assert [ad.ad_id for ad in result.ads] == sorted(ids, key=id_order)
    assert {type(ad.ad_id) for ad in result.ads} == {type(ids[0])}


@pytest.mark.parametrize("matching", MODES)
@pytest.mark.parametrize("top_k", [0, 1, 2, 7, 10**9])
def test_top_k_counts_ads_not_sids(top_k: int, matching: str):
    """The cut falls after the filter and may fall inside an SID; 0 is none, not all."""
    case = Case(num_ads=200, shape="few", rule_rate=0.2, width=33, num_requests=6)
    requests = [request | {"top_k": top_k} for request in case.requests]
    check_case(case, build(case), matching, requests=requests)


def test_null_top_k_is_no_cut():
    case = Case(num_ads=30, rule_rate=0.0, top_k=False, width=33)
    requests = [request | {"top_k": None} for request in case.requests]
    check_case(case, build(case), "exact", requests=requests)


@given(case=cases(max_ads=60, max_vocab=12, widths=(1, 33)))
def test_result_line(case: Case):
    """`to_dict` is the line of the result file: JSON, with exactly these fields."""
    for request, result in zip(case.requests, run(case, "exact"), strict=True):
        line = json.loads(json.dumps(result.to_dict(), allow_nan=False))
        assert set(line) == {"id", "ads", "funnel"}
        assert line["id"] == request["id"]
        assert [(ad["ad_id"], tuple(ad["sid"]), ad["score"]) for ad in line["ads"]] == found(result)
        assert all(set(ad) == {"ad_id", "sid", "score"} for ad in line["ads"])


@pytest.mark.parametrize("matching", MODES)
@pytest.mark.parametrize("spare", [0, 1, 63, 1000])
def test_larger_vocabulary_normalises_over_all_of_it(spare: int, matching: str):
    """V past the catalogue's largest token is fine; the score counts the tokens that no ad has."""
    case = Case(vocab=9, num_ads=40, spare_vocab=spare, num_requests=2, width=33)
    check_case(case, build(case), matching)


@pytest.mark.parametrize("matching", MODES)
def test_smaller_vocabulary_is_an_error(matching: str):
    """V below the catalogue's largest token + 1 would lose ads: refused, with both numbers."""
    index = build_rows([{"ad_id": 1, "sid": [0, 41]}, {"ad_id": 2, "sid": [1, 3]}], COUNTRY)
    request = {"id": 0, "features": {}, "at": NOON.isoformat()}
    with pytest.raises((grace.errors.GraceError, ValueError), match=r"4[12].*40|40.*4[12]"):
        retrieve(index, TableGenerator(40), [request], matching, ((1, 2), 2))


@pytest.mark.parametrize(
    ("widths", "num_sids"),
    [
        ((), 1),
        ((1, 2), 3),  # two steps for three levels
        ((1, 2, 3, 4), 3),
        ((2, 2, 2), 3),
        ((1, 0, 2), 3),
        ((1, -1, 2), 3),
        ((1, 2, 2), 0),
        ((1, 2, 2), -1),
        ((1, 2.5, 2), 3),
        ((1, "2", 2), 3),
    ],
)
def test_a_plan_that_cannot_be_is_refused(widths, num_sids):
    """At the latest when the retriever is made, before any request."""
    case = Case(num_levels=3)
    index = build(case)
    with pytest.raises((grace.errors.GraceError, ValueError, TypeError)):
        grace.Retriever(index, case.generator, plan=grace.BeamPlan(widths, num_sids))


def test_unknown_mode_is_refused():
    case = Case()
    with pytest.raises((grace.errors.GraceError, ValueError), match="bitmask"):
        grace.Retriever(build(case), case.generator, matching="fuzzy")


@given(case=cases(max_ads=60, max_vocab=8))
def test_default_plan_answers(case: Case):
    """Without a plan: as wide as the trie allows up to a limit far above these catalogues."""
    retriever = grace.Retriever(build(case), case.generator)
    for request, result in zip(case.requests, retriever.retrieve(case.requests), strict=True):
        check(result, expected(case, request, "exact", case.trie_plan))


@pytest.mark.parametrize("matching", MODES)
@pytest.mark.parametrize("num_ads", [1, 2, 50, 1500])
def test_many_ads_on_one_sid(num_ads: int, matching: str):
    """No ad is lost and none is let through, however many share an SID."""
    case = Case(num_ads=num_ads, shape="one", num_requests=6, style="coarse")
    check_case(case, build(case), matching)


@examples(0.5)
@given(case=cases(max_ads=60, max_vocab=8), data=st.data())
def test_catalogue_order_does_not_matter(case: Case, data):
    """The same rows in another order answer the same."""
    shuffled = case.where(rows=data.draw(st.permutations(case.ads)))
    lines = [[result.to_dict() for result in run(one, "exact")] for one in (case, shuffled)]
    assert lines[0] == lines[1]


class Misbehaving(TableGenerator):
    """Logits of the wrong shape, kind or type."""

    def __init__(self, vocab: int, change):
        super().__init__(vocab)
        self.change = change

    def step(self, state, parents, tokens):
        return self.change(super().step(state, parents, tokens))


@pytest.mark.parametrize(
    "change",
    [
        lambda logits: logits[0],
        lambda logits: logits[:-1],
        lambda logits: logits.long(),
        lambda logits: logits.numpy(),
        lambda logits: None,
    ],
    ids=["two dimensions", "a request short", "integers", "numpy", "nothing"],
)
def test_a_generator_that_breaks_the_protocol_is_named(change):
    case = Case(num_requests=2)
    with pytest.raises((grace.errors.GraceError, ValueError, TypeError), match=r"logits|step"):
        retrieve(build(case), Misbehaving(case.vocab, change), case.requests, "exact", case.plan)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_logits_of_any_float_type(dtype: str):
    """Half and double logits are legal; constants lose nothing, so the answer is the same."""
    import torch

    case = Case(style="constant", num_ads=40, num_requests=2)
    generator = Misbehaving(case.vocab, lambda logits: logits.to(getattr(torch, dtype)))
    results = retrieve(build(case), generator, case.requests, "exact", case.plan)
    for request, result in zip(case.requests, results, strict=True):
        check(result, expected(case, request, "exact"))
