"""Invariant 1, per ad: what is returned accepts the request; what accepts it is returned.

One SID holds all ads, so that the search takes no part in the answer.
"""

from __future__ import annotations

import random

import oracle
import pytest
from harness import build_rows, check_funnel, eligible_ids, examples, retrieve, run
from hypothesis import given
from hypothesis import strategies as st
from strategies import MODES, NOON, Case, cases
from table_generator import TableGenerator
from test_oracle import CATEGORICAL, RANGE, SET

ONE_SID = ((1,), 1)
SCHEMA = [
    {"name": "country", "kind": "categorical"},
    {"name": "age", "kind": "range"},
    {"name": "places", "kind": "set"},
]


def kept(ads: list[dict], request: dict, matching: str = "exact", schema=SCHEMA) -> list:
    """Ids of the ads, all on one SID, that Grace returns."""
    return ask(build_rows([{"sid": [0], **ad} for ad in ads], schema), request, matching)


def ask(index, request: dict, matching: str) -> list:
    """Ids of the ads returned at noon when every SID is generated."""
    request = {"id": 0, "features": {}, "at": NOON.isoformat(), **request}
    generator, plan = TableGenerator(index.vocab_size), ((1,), index.vocab_size)
    (result,) = retrieve(index, generator, [request], matching, plan)
    assert result.error is None
    return [ad.ad_id for ad in result.ads]


@pytest.mark.parametrize("matching", MODES)
@pytest.mark.parametrize(
    ("name", "table"), [("country", CATEGORICAL), ("age", RANGE), ("places", SET)]
)
def test_rule_tables(name, table, matching):
    """Each line of the hand-made tables, every rule at once and each rule alone."""
    ads = [{"ad_id": number, "rules": {name: rule}} for number, (rule, _, _) in enumerate(table)]
    kind = next(a["kind"] for a in SCHEMA if a["name"] == name)
    for value in [row[1] for row in table]:
        want = [n for n, row in enumerate(table) if oracle.rule_accepts(row[0], kind, value)]
        assert kept(ads, {"attributes": {name: value}}, matching) == want


@pytest.mark.parametrize("matching", MODES)
@pytest.mark.parametrize(
    "attributes", [{}, {"country": None, "age": None, "places": None}, {"places": []}, None]
)
def test_unknown_is_absent_null_or_empty(attributes, matching):
    ads = [
        {"ad_id": 1},
        {"ad_id": 2, "rules": {}},
        {"ad_id": 3, "rules": {"country": {}, "age": {}, "places": {}}},
        {"ad_id": 4, "rules": {"country": {"exclude": ["US"]}}},
        {"ad_id": 5, "rules": {"age": {"min": 0}}},
        {"ad_id": 6, "rules": {"places": {"exclude": ["a"]}}},
        {"ad_id": 7, "rules": {"places": {"include": ["a"]}}},
    ]
    request = {} if attributes is None else {"attributes": attributes}
    assert kept(ads, request, matching) == [1, 2, 3]


@pytest.mark.parametrize("matching", MODES)
def test_never_seen_value_fails_includes_and_passes_excludes(matching):
    ads = [
        {"ad_id": 1, "rules": {"country": {"include": ["US"]}}},
        {"ad_id": 2, "rules": {"country": {"exclude": ["US"]}}},
        {"ad_id": 3, "rules": {"places": {"include": ["a"]}}},
        {"ad_id": 4, "rules": {"places": {"exclude": ["a"]}}},
    ]
    assert kept(ads, {"attributes": {"country": "XX", "places": ["zz"]}}, matching) == [2, 4]


@pytest.mark.parametrize("matching", MODES)
@pytest.mark.parametrize(
    ("at", "want"),
    [
        ("2026-03-01T11:59:59.999999Z", [3, 4]),
        ("2026-03-01T12:00:00Z", [1, 2, 3, 4]),
        ("2026-03-01T12:00:00+00:00", [1, 2, 3, 4]),
        ("2026-03-01T14:00:00.999999+02:00", [1, 2, 3, 4]),
        ("2026-03-01T05:00:01-07:00", [2, 4]),
        ("2026-03-01T12:00:01.000001Z", [2]),
    ],
)
def test_window_edges(at, want, matching):
    """start <= at < end, to the second and to the microsecond, in any zone."""
    ads = [
        {"ad_id": 1, "start": "2026-03-01T12:00:00Z", "end": "2026-03-01T12:00:01Z"},
        {"ad_id": 2, "start": "2026-03-01T12:00:00Z"},
        {"ad_id": 3, "end": "2026-03-01T12:00:01Z"},
        {"ad_id": 4, "end": "2026-03-01T12:00:01.000001Z"},
    ]
    assert kept(ads, {"at": at}, matching) == want


@pytest.mark.parametrize("matching", MODES)
def test_range_ends_are_closed_and_exact(matching):
    """Neighbouring float64 values fall on either side of an end point; ints equal their floats."""
    tenth, above = 0.1, 0.1 + 2**-56
    assert tenth < above
    ads = [
        {"ad_id": 1, "rules": {"age": {"max": tenth}}},
        {"ad_id": 2, "rules": {"age": {"min": above}}},
        {"ad_id": 3, "rules": {"age": {"min": tenth, "max": above}}},
        {"ad_id": 4, "rules": {"age": {"min": 2**40, "max": 2**40}}},
    ]
    answers = [
        kept(ads, {"attributes": {"age": value}}, matching)
        for value in (tenth, above, 0, -1e30, float(2**40), 2**40 + 1)
    ]
    assert answers == [[1, 3], [2, 3], [1], [1], [2, 4], [2]]


@pytest.mark.parametrize("matching", MODES)
def test_place_lists_longer_than_a_word(matching):
    """Rules and requests with many more values than bits in a machine word."""
    many = [f"place {number}" for number in range(3000)]
    ads = [
        {"ad_id": 1, "rules": {"places": {"include": many}}},
        {"ad_id": 2, "rules": {"places": {"exclude": many}}},
        {"ad_id": 3, "rules": {"places": {"include": many[:1500], "exclude": many[1500:]}}},
    ]
    assert kept(ads, {"attributes": {"places": ["elsewhere", many[2999]]}}, matching) == [1]
    assert kept(ads, {"attributes": {"places": ["elsewhere", many[0]]}}, matching) == [1, 3]
    assert kept(ads, {"attributes": {"places": many}}, matching) == [1]
    assert kept(ads, {"attributes": {"places": ["elsewhere"]}}, matching) == [2]


def test_categorical_with_many_values():
    """One bit a value: past 64 and past 4,096 values."""
    values = [f"value {number}" for number in range(5000)]
    ads = [
        {"ad_id": number, "rules": {"country": {"include": [value]}}}
        for number, value in enumerate(values)
    ]
    ads.append({"ad_id": 5000, "rules": {"country": {"exclude": values[:4999]}}})
    for matching in ("bitmask+bloom", "exact"):
        assert kept(ads, {"attributes": {"country": values[4321]}}, matching) == [4321]
        assert kept(ads, {"attributes": {"country": values[4999]}}, matching) == [4999, 5000]


def test_more_end_points_than_intervals():
    """Past 4,096 elementary intervals neighbours merge; no eligible ad may be lost by it."""
    ads = [
        {"ad_id": n, "sid": [n % 3], "rules": {"age": {"min": n, "max": n + 0.25}}}
        for n in range(6000)
    ]
    index = build_rows(ads, SCHEMA)
    for matching in ("bitmask+bloom", "exact"):
        for value, want in ((0, [0]), (5999.25, [5999]), (4097.125, [4097]), (17.5, [])):
            assert ask(index, {"attributes": {"age": value}}, matching) == want


def test_merged_intervals_lose_nothing():
    """10,000 random end points, asked at them and between them: all eligible ads come back."""
    rng = random.Random(0)
    ads = []
    for number in range(5000):
        low = rng.uniform(0, 1000)
        rule = {"min": low, "max": low + rng.uniform(0, 3)}
        ads.append({"ad_id": number, "sid": [rng.randrange(1000)], "rules": {"age": rule}})
    index = build_rows(ads, SCHEMA)
    for _ in range(20):
        rule = rng.choice(ads)["rules"]["age"]
        value = rng.choice((rule["min"], rule["max"], rng.uniform(-5, 1005)))
        request = {"attributes": {"age": value}, "at": NOON.isoformat()}
        want = {ad["ad_id"] for ad in ads if oracle.accepts(ad, request, SCHEMA)}
        for matching in ("bitmask+bloom", "exact"):
            assert set(ask(index, request, matching)) == want


def test_no_at_means_now():
    """A request without `at` is asked now."""
    ads = [{"end": "2020-01-01T00:00:00Z"}, {"start": "2020-01-01T00:00:00Z"}]
    index = build_rows([{"ad_id": n, "sid": [0], **ad} for n, ad in enumerate(ads)], SCHEMA)
    (result,) = retrieve(index, TableGenerator(1), [{"id": 0, "features": {}}], "exact", ONE_SID)
    assert [ad.ad_id for ad in result.ads] == [1]


text = st.text(st.characters(codec="utf-8"), min_size=1, max_size=6)
values = st.lists(text, min_size=1, max_size=3, unique=True)
lists = st.fixed_dictionaries({}, optional={"include": values, "exclude": values})


@given(rules=st.lists(lists, min_size=1, max_size=6), data=st.data())
def test_any_text_is_a_value(rules, data):
    """Values are compared by their exact text: case, accents, blanks and all."""
    named = sorted({value for rule in rules for part in rule.values() for value in part})
    value = data.draw(st.sampled_from(named) | text if named else text)
    request = {"attributes": {"country": value, "places": [value]}, "at": NOON.isoformat()}
    for name in ("country", "places"):
        ads = [{"ad_id": n, "rules": {name: rule}} for n, rule in enumerate(rules)]
        want = [ad["ad_id"] for ad in ads if oracle.accepts(ad, request, SCHEMA)]
        assert kept(ads, request) == want


@examples(2)
@given(case=cases(shape="one", num_levels=1, num_requests=8, top_k=False))
def test_eligible_is_what_each_ad_says(case: Case):
    """Random rules of every kind: the ads of one SID, whole and in order, and why others fell."""
    case = case.where(style="smooth")
    for request, result in zip(case.requests, run(case, "valid", ONE_SID), strict=True):
        want = sorted(eligible_ids(case, request), key=oracle.id_order)
        assert [ad.ad_id for ad in result.ads] == want
        reasons = [oracle.refusal(ad, request, case.schema) for ad in case.ads]
        check_funnel(
            result.funnel,
            {
                "dropped": {reason: reasons.count(reason) for reason in set(reasons) - {None}},
                "expanded_ads": len(reasons),
                "eligible_ads": len(want),
                "returned_ads": len(want),
            },
        )
