"""`resolve`: unique SIDs, prefixes kept where there is room, nearest first."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sid_rows import gaussian

from grace.errors import SidError
from grace.sid import fit_sids
from grace.sid.collisions import resolve_collisions


@st.composite
def quantised(draw: st.DrawFn):
    """Vectors, random codebooks (some smaller than V) and any codes: no fit needed."""
    codes = draw(st.integers(1, 6))
    levels = draw(st.integers(1, 4))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    books = tuple(
        rng.standard_normal((draw(st.integers(1, codes)), 3)).astype(np.float32)
        for _ in range(levels)
    )
    items = draw(st.integers(1, min(codes**levels, 60)))
    vectors = rng.standard_normal((items, 3)).astype(np.float32)
    vectors[rng.random(items) < 0.3] = vectors[0]
    skew = draw(st.sampled_from([1, 4]))  # 4: most items on few codes
    sids = np.column_stack(
        [(rng.random(items) ** skew * len(book)).astype(np.int32) for book in books]
    )
    return vectors, sids, books, codes


@given(quantised())
def test_sids_become_unique_and_stay_in_range(case):
    vectors, sids, books, codes = case
    resolved = resolve_collisions(vectors, sids, books, codes)
    assert len(np.unique(resolved, axis=0)) == len(sids)
    assert resolved.min() >= 0
    assert resolved.max() < codes
    assert resolved.dtype == np.int32


@given(quantised())
def test_as_few_items_move_as_possible(case):
    vectors, sids, books, codes = case
    resolved = resolve_collisions(vectors, sids, books, codes)
    moved = (resolved != sids).any(axis=1)
    assert moved.sum() == len(sids) - len(np.unique(sids, axis=0))
    # On each SID one item stays, and none that moved was nearer.
    rebuilt = sum(book[sids[:, level]] for level, book in enumerate(books))
    errors = ((vectors - rebuilt) ** 2).sum(axis=1)
    for item in np.flatnonzero(moved):
        same = (sids == sids[item]).all(axis=1)
        (stays,) = np.flatnonzero(same & ~moved)
        assert errors[stays] <= errors[item] + 1e-5


@given(quantised())
def test_a_prefix_changes_only_where_it_is_full(case):
    """At every depth, as many items stay under a prefix as fit there."""
    vectors, sids, books, codes = case
    resolved = resolve_collisions(vectors, sids, books, codes)
    levels = sids.shape[1]
    for depth in range(levels):
        before = Counter(map(tuple, sids[:, :depth].tolist()))
        kept = (resolved[:, :depth] == sids[:, :depth]).all(axis=1)
        stayed = Counter(map(tuple, sids[kept][:, :depth].tolist()))
        for prefix, count in before.items():
            assert stayed[prefix] == min(count, codes ** (levels - depth))


@given(st.integers(2, 12), st.data())
def test_a_displaced_item_takes_the_nearest_free_code(codes, data):
    taken = data.draw(st.permutations(range(codes)))[: data.draw(st.integers(1, codes - 1))]
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    first, last = (rng.standard_normal((size, 3)).astype(np.float32) for size in (1, codes))
    displaced = taken[0]
    owners = first + last[taken]
    vectors = np.concatenate((owners, owners[:1] + np.float32(0.5)))
    sids = np.array([[0, code] for code in (*taken, displaced)], np.int32)
    resolved = resolve_collisions(vectors, sids, (first, last), codes)
    np.testing.assert_array_equal(resolved[:-1], sids[:-1])
    distance = ((vectors[-1] - first - last) ** 2).sum(axis=1)
    distance[taken] = np.inf
    assert resolved[-1].tolist() == [0, distance.argmin()]


def test_more_items_than_sids_names_the_numbers():
    with pytest.raises(SidError, match="17 items, but 2 levels of 4 codes make only 16 SIDs"):
        fit_sids(gaussian(17), levels=2, codes=4, collisions="resolve")


def test_as_many_items_as_sids_fill_the_space():
    fit = fit_sids(gaussian(64), levels=2, codes=8, collisions="resolve")
    assert fit.report.distinct_sids == 64
    assert fit.report.moved_prefixes > 0
    assert fit.report.collision_rate == 0


def test_duplicates_are_spread_over_codes_without_a_centroid():
    vectors = np.repeat(gaussian(20), 4, axis=0)
    fit = fit_sids(vectors, levels=3, codes=64, collisions="resolve")
    assert sorted(fit.sids[:4, 2].tolist()) == [0, 1, 2, 3]
    assert fit.report.moved_items == 60
    assert fit.report.moved_prefixes == 0


def test_cluster_and_resolve_agree_on_items_that_do_not_collide():
    vectors = gaussian(500)
    cluster = fit_sids(vectors, levels=3, codes=16)
    resolve = fit_sids(vectors, levels=3, codes=16, collisions="resolve")
    moved = (cluster.sids != resolve.sids).any(axis=1)
    assert moved.sum() == resolve.report.moved_items == 500 - cluster.report.distinct_sids
    np.testing.assert_array_equal(cluster.sids[:, :-1], resolve.sids[:, :-1])
