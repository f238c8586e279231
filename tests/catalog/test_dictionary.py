"""Values, rules, windows and signatures get one number each, whoever adds them and how often."""

import itertools

import numpy as np
import pyarrow as pa
import pytest
from grace._native import RecordSet, TextSet, ValueRuleSet
from hypothesis import given
from hypothesis import strategies as st
from random_tables import SCHEMA, rules_of

from grace.catalog import RangeRule, SetRule
from grace.catalog.dictionary import Dictionary, Lists, text_buffers
from grace.catalog.tables import ALWAYS

# Lengths on both sides of the hash's steps, and texts that differ in one place.
TEXTS = [
    "",
    *("x" * length for length in (1, 7, 8, 9, 15, 16, 17, 31, 32, 33, 100)),
    *("x" * place + "y" + "x" * (32 - place) for place in range(33)),
    "\0",
    "\0\0",
    "日本",
]
rules = st.lists(
    st.builds(
        SetRule,
        *[st.lists(st.sampled_from(TEXTS), max_size=4, unique=True).map(sorted).map(tuple)] * 2,
    )
    | st.none()
)


def test_equal_records_share_a_number_and_others_do_not():
    """Past a million records many share half a hash, and the table has grown often."""
    numbers = np.random.default_rng(0).integers(0, 600_000, 1_000_000).astype(np.int64)
    records = RecordSet(8)
    ids = records.add(numbers.view(np.uint8).reshape(-1, 8))
    _, first = np.unique(numbers, return_index=True)
    order = numbers[np.sort(first)]
    assert np.array_equal(records.records().view(np.int64)[:, 0], order)
    assert np.array_equal(order[ids], numbers)
    assert np.array_equal(records.add(order[:9].view(np.uint8).reshape(-1, 8)), np.arange(9))


def test_texts_of_all_lengths():
    texts = TextSet()
    column = pa.array(TEXTS * 2 + TEXTS[::-1], pa.large_string())
    ids = texts.add(*text_buffers(column))
    assert ids.tolist() == [*range(len(TEXTS))] * 2 + [*range(len(TEXTS))][::-1]
    assert texts.add(*text_buffers(column[3:5])).tolist() == [3, 4]
    assert len(texts) == len(TEXTS)
    offsets, text = texts.texts()
    assert [bytes(text[a:b]).decode() for a, b in itertools.pairwise(offsets)] == TEXTS


def test_offsets_out_of_bounds_are_refused():
    text = np.zeros(4, np.uint8)
    for offsets in ([0, 5], [3, 2], [-1, 2], []):
        with pytest.raises(ValueError, match="offsets must ascend"):
            TextSet().add(np.array(offsets, np.int64), text)
    one, none = np.zeros(2, np.int64), np.zeros(1, np.int64)
    with pytest.raises(ValueError, match="as many include lists"):
        ValueRuleSet().add(one, np.empty(0, np.int32), none, np.empty(0, np.int32))


@given(rules)
def test_rules_are_sets_of_values(rules):
    dictionary = Dictionary(SCHEMA).rules[2]
    ids = dictionary.add_rules(rules)
    found = rules_of(dictionary.table())
    want = [
        (frozenset(rule.include), frozenset(rule.exclude)) if rule else (frozenset(), frozenset())
        for rule in rules
    ]
    assert [found[i] for i in ids] == want
    assert len(found) == len(set(want) | {(frozenset(), frozenset())})
    assert found[0] == (frozenset(), frozenset())


@given(st.lists(st.tuples(*[st.lists(st.integers(0, 5), max_size=5)] * 2)), st.randoms())
def test_order_and_repeats_do_not_matter(lists, random):
    dictionary = Dictionary(SCHEMA).rules[2]

    def add(pairs):
        sides = []
        for side in (0, 1):
            offsets = np.cumsum([0, *(len(pair[side]) for pair in pairs)], dtype=np.int64)
            flat = np.array([i for pair in pairs for i in pair[side]], np.int32)
            sides.append(Lists(offsets, flat))
        return dictionary.add(*sides).tolist()

    ids = add(lists)
    again = [tuple(random.sample(side * 2, 2 * len(side)) for side in pair) for pair in lists]
    assert add(again) == ids
    sets = [tuple(map(frozenset, pair)) for pair in lists]
    assert [sets.index(one) for one in sets] == [
        ids.index(number) for number in ids
    ]  # equal where the sets are


@given(rules, rules, st.data())
def test_merged_dictionaries_say_the_same(mine, theirs, data):
    one, two = Dictionary(SCHEMA), Dictionary(SCHEMA)
    signed = []
    for dictionary, places in ((one, mine), (two, theirs)):
        n = len(places)
        ages = [RangeRule(0.0, data.draw(st.sampled_from((0.0, 1.0)))) for _ in range(n)]
        ends = data.draw(
            st.lists(st.sampled_from(((0, 1), (0, 2), ALWAYS)), min_size=n, max_size=n)
        )
        columns = [dictionary.rules[0].add_rules(ages), np.zeros(n, np.int32)]
        columns.append(dictionary.rules[2].add_rules(places))
        windows = np.array(ends, np.int64).reshape(-1, 2)
        signatures = dictionary.sign(columns, windows)
        signed.append((signatures, list(zip(ages, places, ends, strict=True))))
    renumbered = one.merge(two)
    ages, _, places = (rules_of(rules.table()) for rules in one.rules)
    rows = one.signatures()
    assert len(np.unique(rows, axis=0)) == len(rows)
    for ids, (_, ads) in zip((signed[0][0], renumbered[signed[1][0]]), signed, strict=True):
        for row, (age, place, window) in zip(rows[ids], ads, strict=True):
            assert ages[row[0]] == (age.min, age.max)
            named = place or SetRule((), ())
            assert places[row[2]] == (frozenset(named.include), frozenset(named.exclude))
            assert tuple(one.windows()[row[3]]) == window
