"""`reassign`: the optimum by brute force; `extra-token`: numbers by distance."""

from __future__ import annotations

import itertools
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sid_rows import gaussian
from test_sid_collisions import quantised

from grace.errors import SidError
from grace.sid import fit_sids
from grace.sid.collisions import resolve_collisions, squared_errors
from grace.sid.extra_token import append_token
from grace.sid.reassign import reassign_collisions


@given(quantised())
def test_sids_become_unique_and_stay_in_range(case):
    vectors, sids, books, codes = case
    found = reassign_collisions(vectors, sids, books, codes)
    assert len(np.unique(found, axis=0)) == len(sids)
    assert found.min() >= 0
    assert found.max() < codes
    assert found.dtype == np.int32


@given(quantised())
def test_items_alone_on_their_sid_stay(case):
    vectors, sids, books, codes = case
    found = reassign_collisions(vectors, sids, books, codes)
    _, sid, sharing = np.unique(sids, axis=0, return_inverse=True, return_counts=True)
    alone = sharing[sid] == 1
    np.testing.assert_array_equal(found[alone], sids[alone])


@given(quantised())
def test_a_prefix_keeps_as_many_items_as_fit(case):
    vectors, sids, books, codes = case
    found = reassign_collisions(vectors, sids, books, codes)
    before = Counter(map(tuple, sids[:, :-1].tolist()))
    kept = (found[:, :-1] == sids[:, :-1]).all(axis=1)
    stayed = Counter(map(tuple, sids[kept][:, :-1].tolist()))
    assert all(stayed[prefix] == min(count, codes) for prefix, count in before.items())


@st.composite
def under_one_prefix(draw: st.DrawFn):
    """Up to 6 items and 7 codes: few enough to try every assignment."""
    codes = draw(st.integers(2, 7))
    items = draw(st.integers(1, min(codes, 6)))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    books = tuple(rng.standard_normal((size, 3)).astype(np.float32) for size in (1, codes))
    vectors = rng.standard_normal((items, 3)).astype(np.float32)
    last = rng.integers(0, draw(st.integers(1, codes)), items)
    sids = np.column_stack((np.zeros(items), last)).astype(np.int32)
    return vectors, sids, books, codes


@given(under_one_prefix())
def test_the_sum_of_errors_is_the_least_there_is(case):
    vectors, sids, books, codes = case
    found = reassign_collisions(vectors, sids, books, codes)
    occupied = Counter(sids[:, 1].tolist())
    moving = [item for item, code in enumerate(sids[:, 1].tolist()) if occupied[code] > 1]
    free = [code for code in range(codes) if occupied[code] != 1]
    distance = ((vectors[:, None] - books[0] - books[1]) ** 2).sum(-1)
    least = min(
        sum(distance[item, code] for item, code in zip(moving, choice, strict=True))
        for choice in itertools.permutations(free, len(moving))
    )
    assert distance[moving, found[moving, 1]].sum() == pytest.approx(least, abs=1e-4)
    greedy = resolve_collisions(vectors, sids, books, codes)
    ours, theirs = (squared_errors(vectors, new, books).sum() for new in (found, greedy))
    assert ours <= theirs + 1e-4


def test_more_items_than_sids_names_the_numbers():
    with pytest.raises(SidError, match="17 items, but 2 levels of 4 codes make only 16 SIDs"):
        fit_sids(gaussian(17), levels=2, codes=4, collisions="reassign")


def test_as_many_items_as_sids_fill_the_space():
    fit = fit_sids(gaussian(64), levels=2, codes=8, collisions="reassign")
    assert fit.report.distinct_sids == 64
    assert fit.report.moved_prefixes > 0


@given(quantised())
def test_the_extra_token_numbers_by_distance(case):
    vectors, sids, books, _ = case
    found = append_token(vectors, sids, books, 60)
    np.testing.assert_array_equal(found[:, :-1], sids)
    errors = squared_errors(vectors, sids, books)
    for sid in np.unique(sids, axis=0):
        rows = np.flatnonzero((sids == sid).all(axis=1))
        nearest = rows[np.argsort(errors[rows], kind="stable")]
        assert found[nearest, -1].tolist() == list(range(len(rows)))


def test_more_items_on_a_sid_than_codes():
    vectors = np.concatenate((gaussian(20), np.repeat(gaussian(1, seed=1), 9, axis=0)))
    with pytest.raises(SidError, match="9 items share a SID, but a level has 8 codes"):
        fit_sids(vectors, levels=3, codes=8, collisions="extra-token")


def test_the_report_by_prefix_and_by_items_of_a_sid():
    vectors = np.concatenate((gaussian(30), gaussian(3), gaussian(3), gaussian(2, seed=9)))
    report = fit_sids(vectors, levels=2, codes=64, collisions="cluster").report
    assert report.sids_by_ads == {1: 29, 3: 3}
    assert [prefix.length for prefix in report.prefixes] == [1, 2]
    assert report.prefixes[1].distinct == report.distinct_sids == 32
    assert report.prefixes[1].items_sharing == 9
    assert report.prefixes[1].most_items == 3
    extra = fit_sids(vectors, levels=2, codes=64, collisions="extra-token").report
    assert [prefix.distinct for prefix in extra.prefixes] == [32, 32, 38]
    assert extra.moved_items == 0
    level = report.levels[0]
    assert level.perplexity == pytest.approx(2**level.entropy_bits)
