"""The oracle against cases worked out by hand: it judges the rest, so it is judged first."""

from __future__ import annotations

import math

import numpy as np
import oracle
import pytest
from strategies import Case

NOON = "2026-03-01T12:00:00Z"
COUNTRY = [{"name": "country", "kind": "categorical"}]
AGE = [{"name": "age", "kind": "range"}]
PLACES = [{"name": "places", "kind": "set"}]


def request(at: str = NOON, **attributes) -> dict:
    return {"attributes": attributes, "at": at}


def ad(ad_id: int = 0, sid=(0,), **row) -> dict:
    return {"ad_id": ad_id, "sid": list(sid), **row}


# (rule, value, accepted): DESIGN.md, "Targeting semantics", line by line
CATEGORICAL = [
    (None, "US", True),
    ({}, "US", True),
    ({"include": None, "exclude": None}, None, True),
    (None, None, True),
    ({"include": ["US"]}, "US", True),
    ({"include": ["US"]}, "CA", False),
    ({"include": ["US"]}, None, False),
    ({"include": ["US"]}, "never seen", False),
    ({"exclude": ["US"]}, "US", False),
    ({"exclude": ["US"]}, "CA", True),
    ({"exclude": ["US"]}, "never seen", True),
    ({"exclude": ["US"]}, None, False),
    ({"include": ["US", "CA"], "exclude": ["US"]}, "US", False),
    ({"include": ["US", "CA"], "exclude": ["US"]}, "CA", True),
    ({"include": [5]}, "5", True),
    ({"include": ["true"]}, True, True),
]
RANGE = [
    ({"min": 18, "max": 24}, 18, True),
    ({"min": 18, "max": 24}, 24, True),
    ({"min": 18, "max": 24}, 24.0001, False),
    ({"min": 18, "max": 24}, 17.9999, False),
    ({"min": 18}, 1e300, True),
    ({"max": 18}, -1e300, True),
    ({"max": 18}, None, False),
    ({"min": None, "max": None}, None, True),
]
SET = [
    (None, ["a"], True),
    (None, [], True),
    ({"include": ["a"]}, ["b", "a"], True),
    ({"include": ["a"]}, ["b"], False),
    ({"include": ["a"]}, [], False),
    ({"exclude": ["a"]}, ["b", "a"], False),
    ({"exclude": ["a"]}, ["b"], True),
    ({"exclude": ["a"]}, [], False),
    ({"exclude": ["a"]}, None, False),
    ({"include": ["b"], "exclude": ["a"]}, ["b", "a"], False),
    ({"include": ["b"], "exclude": ["a"]}, ["b", "c"], True),
    ({"include": ["b"], "exclude": ["a"]}, ["never seen"], False),
]


@pytest.mark.parametrize(
    ("kind", "rule", "value", "accepted"),
    [
        *(("categorical", *row) for row in CATEGORICAL),
        *(("range", *row) for row in RANGE),
        *(("set", *row) for row in SET),
    ],
)
def test_rules(kind, rule, value, accepted):
    assert oracle.rule_accepts(rule, kind, value) is accepted


@pytest.mark.parametrize(
    ("at", "reason"),
    [
        ("2026-03-01T11:59:59.999999Z", "window"),
        ("2026-03-01T12:00:00Z", None),
        ("2026-03-01T13:59:59.999999+01:00", None),
        ("2026-03-01T13:00:00Z", "window"),
        ("2026-03-01T05:00:00-08:00", "window"),
    ],
)
def test_windows_start_inclusive_end_exclusive(at, reason):
    row = ad(start="2026-03-01T12:00:00Z", end="2026-03-01T13:00:00+00:00")
    assert oracle.refusal(row, request(at), COUNTRY) == reason


def test_first_reason_wins():
    schema = [*AGE, *COUNTRY]
    row = ad(rules={"country": {"include": ["US"]}, "age": {"min": 18}}, end=NOON, paused=True)
    asked = request(country="CA", age=3)
    reasons = [
        oracle.refusal(row, asked, schema),
        oracle.refusal(row | {"paused": False}, asked, schema),
        oracle.refusal(row | {"paused": False, "end": None}, asked, schema),
        oracle.refusal(row | {"paused": False, "end": None}, request(age=18, country="CA"), schema),
        oracle.refusal(row | {"paused": False, "end": None}, request(age=18, country="US"), schema),
    ]
    assert reasons == ["paused", "window", "age", "country", None]


def test_union_loses_correlation():
    """GRACE's equations 6 and 7: US + 18-24 and CA + 25-34 under one node, a request US + 30."""
    ads = [
        ad(1, (0, 0), rules={"country": {"include": ["US"]}, "age": {"min": 18, "max": 24}}),
        ad(2, (0, 1), rules={"country": {"include": ["CA"]}, "age": {"min": 25, "max": 34}}),
        ad(3, (1, 0), rules={"country": {"include": ["UK"]}}),
    ]
    schema, asked = [*COUNTRY, *AGE], request(country="US", age=30)
    assert oracle.UnionMatcher(ads, schema).prefixes(asked) == {(), (0,)}
    assert oracle.eligible_prefixes(ads, asked, schema) == set()


@pytest.mark.parametrize(
    ("rules", "asked", "allowed"),
    [
        ({"country": {"include": ["US"]}}, request(), False),
        ({"country": {"exclude": ["US"]}}, request(country="US"), False),
        ({"country": {"exclude": ["US"]}}, request(country="other"), True),
        ({"age": {"min": 18, "max": 24}}, request(age=24), True),
        ({"age": {"min": 18, "max": 24}}, request(age=24.5), False),
        ({"places": {"include": ["a"]}}, request(places=["b"]), False),
        ({"places": {"include": ["a"]}}, request(places=["b", "a"]), True),
        ({"places": {"include": ["a"]}}, request(), False),
        ({"places": {"exclude": ["a"]}}, request(), False),
        ({"places": {"exclude": ["a"]}}, request(places=["a"]), True),  # exclusions cannot prune
        ({"places": {}}, request(), True),
    ],
)
def test_union_of_one_ad(rules, asked, allowed):
    kinds = {"country": "categorical", "age": "range", "places": "set"}
    schema = [{"name": name, "kind": kinds[name]} for name in rules]
    assert oracle.UnionMatcher([ad(rules=rules)], schema).allows((0,), asked) is allowed


def test_bloom_collisions_only_add():
    row = ad(rules={"places": {"include": ["a"]}})
    colliding = oracle.UnionMatcher([row], PLACES, lambda value: [0, 1])
    assert colliding.allows((0,), request(places=["b"]))


@pytest.mark.parametrize("seed", range(40))
def test_union_is_the_union_of_what_each_ad_accepts(seed):
    """A bit is set exactly if some ad below accepts that value (sets: includes only)."""
    case = Case(seed=seed, num_ads=12, num_levels=2, vocab=3, num_requests=8, num_places=5)
    union = oracle.UnionMatcher(case.ads, case.schema)

    def may(row, kind, value) -> bool:
        if kind == "set" and value and oracle.has_rule(row):
            row = {"include": row.get("include")}
        return oracle.rule_accepts(row, kind, value)

    for asked in case.requests:
        for prefix in oracle.valid_prefixes(case.ads):
            below = [row for row in case.ads if tuple(row["sid"][: len(prefix)]) == prefix]
            want = all(
                any(
                    may(
                        (row["rules"] or {}).get(a["name"]),
                        a["kind"],
                        asked["attributes"].get(a["name"]),
                    )
                    for row in below
                )
                for a in case.schema
            )
            assert union.allows(prefix, asked) is want
        assert oracle.eligible_prefixes(case.ads, asked, case.schema) <= union.prefixes(asked)


def test_step_scores():
    scores = oracle.step_scores(np.array([0, 0, -np.inf, 0, 0], dtype=np.float32))
    assert scores.dtype == np.float32
    assert scores[0] == np.float32(-math.log(4))
    assert np.isneginf(scores[2])
    assert np.isneginf(oracle.step_scores(np.full(3, -np.inf, np.float32))).all()
    for bad in (np.nan, np.inf):
        with pytest.raises(oracle.BadLogits):
            oracle.step_scores(np.array([0, bad], dtype=np.float32))


def test_beam_search_by_hand():
    """Two beams forget the best path behind the third-best first token."""
    table = {
        (): [0.5, 0.3, 0.2],
        (0,): [0.4, 0.3, 0.3],
        (1,): [0.4, 0.4, 0.2],
        (2,): [1.0, 0.0, 0.0],
    }

    def logits(prefix):
        with np.errstate(divide="ignore"):
            return np.log(np.array(table[prefix], dtype=np.float32))

    wide = oracle.beam_search(logits, (1, 3), 2)
    assert [sid for sid, _ in wide[-1]] == [(0, 0), (2, 0)]
    narrow = oracle.beam_search(logits, (1, 2), 3)
    assert [sid for sid, _ in narrow[0]] == [(0,), (1,)]
    assert [sid for sid, _ in narrow[-1]] == [(0, 0), (0, 1), (0, 2)]  # ties: (score, then SID)
    inside = oracle.beam_search(logits, (1, 9), 9, allowed={(), (1,), (2,), (2, 0), (2, 1)})
    assert [sid for sid, _ in inside[-1]] == [
        (2, 0)
    ]  # (2, 1) is in the trie, but its logit is -inf


def test_retrieve_by_hand():
    ads = [
        ad(9, (1,)),
        ad(7, (1,), rules={"country": {"include": ["US"]}}),
        ad(8, (0,), paused=True),
        ad(3, (1,), rules={"country": {"include": ["CA"]}}),
    ]

    def logits(prefix):
        return np.zeros(3, dtype=np.float32)

    asked = request(country="US") | {"top_k": 1}
    third = np.float32(-math.log(3))
    off = oracle.retrieve(ads, asked, COUNTRY, logits, (1,), 9, "off")
    assert off.sids == [((0,), third), ((1,), third), ((2,), third)]
    assert off.ads == [(7, (1,), third)]
    assert off.funnel == {
        "generated_sids": 3,
        "catalog_sids": 2,
        "eligible_sids": 1,
        "expanded_ads": 4,
        "dropped": {"paused": 1, "country": 1},
        "eligible_ads": 2,
        "returned_ads": 1,
    }
    assert (off.live, off.wasted) == ([1], [0])
    exact = oracle.retrieve(ads, asked, COUNTRY, logits, (1,), 9, "exact")
    assert (exact.sids, exact.live) == ([((1,), third)], [1])
    assert exact.ads == off.ads
