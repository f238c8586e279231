"""`fit_sids`: shapes, determinism, duplicates, and what every fit must keep."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, reject
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from sid_rows import gaussian

from grace.errors import SidError
from grace.sid import assign_sids, fit_sids
from grace.sid.quantize import MAX_FULL_KMEANS


@st.composite
def embeddings(draw: st.DrawFn) -> np.ndarray:
    """Rows drawn from a pool, so that duplicates, zero rows and single items all occur."""
    dimensions = draw(st.integers(1, 6))
    values = st.floats(-4, 4, width=16)
    pool = draw(npst.arrays(np.float32, (draw(st.integers(1, 40)), dimensions), elements=values))
    picks = draw(st.lists(st.integers(0, len(pool) - 1), min_size=1, max_size=60))
    return pool[picks]


def fit_unless_collapsed(vectors: np.ndarray, *args: object, **kwargs: object):
    try:
        return fit_sids(vectors, *args, **kwargs)
    except SidError:  # test_sid_collapse.py says when
        reject()


@given(embeddings(), st.integers(1, 4), st.integers(2, 20), st.integers(0, 3))
def test_shapes_ranges_and_report(vectors, levels, codes, seed):
    fit = fit_unless_collapsed(vectors, levels, codes, seed)
    assert fit.sids.shape == (len(vectors), levels)
    assert fit.sids.dtype == np.int32
    assert fit.sids.min() >= 0
    assert [len(codebook) <= codes for codebook in fit.codebooks] == [True] * levels
    assert all((fit.sids[:, i] < len(book)).all() for i, book in enumerate(fit.codebooks))
    report = fit.report
    distinct, ads = np.unique(fit.sids, axis=0, return_counts=True)
    assert (report.items, report.distinct_sids) == (len(vectors), len(distinct))
    assert report.ads_per_sid["max"] == ads.max()
    assert report.collision_rate == pytest.approx(1 - len(distinct) / len(vectors))
    for i, level in enumerate(report.levels):
        share = np.unique(fit.sids[:, i], return_counts=True)[1] / len(vectors)
        assert level.used == len(share)
        assert level.perplexity == pytest.approx(np.prod(share**-share))
        assert 0 <= level.resolved <= 1


@given(embeddings(), st.integers(1, 3), st.integers(2, 12))
def test_reported_error_is_the_error_of_the_codebooks(vectors, levels, codes):
    fit = fit_unless_collapsed(vectors, levels, codes)
    spread = ((vectors - vectors.mean(axis=0, dtype=np.float64)) ** 2).sum()
    rebuilt = np.zeros_like(vectors)
    for i, level in enumerate(fit.report.levels):
        rebuilt += fit.codebooks[i][fit.sids[:, i]]
        expected = ((vectors - rebuilt) ** 2).sum() / spread if spread else 0
        assert level.relative_error == pytest.approx(expected, abs=1e-5)


@given(embeddings(), st.integers(1, 3), st.integers(2, 12), st.randoms(use_true_random=False))
def test_permuting_rows_permutes_sids(vectors, levels, codes, random):
    order = list(range(len(vectors)))
    random.shuffle(order)
    fit = fit_unless_collapsed(vectors, levels, codes)
    shuffled = fit_sids(vectors[order], levels, codes)
    np.testing.assert_array_equal(shuffled.sids, fit.sids[order])


@given(embeddings(), st.integers(1, 3), st.integers(2, 12))
def test_equal_vectors_share_a_sid_and_assignment_repeats_the_fit(vectors, levels, codes):
    fit = fit_unless_collapsed(vectors, levels, codes)
    _, group = np.unique(vectors + np.float32(0), axis=0, return_inverse=True)
    pairs = np.unique(np.column_stack((group, fit.sids)), axis=0)
    assert len(pairs) == group.max() + 1
    np.testing.assert_array_equal(assign_sids(vectors, fit.codebooks), fit.sids)


@given(embeddings(), st.integers(1, 3))
def test_few_distinct_vectors_are_reproduced_exactly_by_level_1(vectors, levels):
    distinct = len(np.unique(vectors + np.float32(0), axis=0))
    fit = fit_unless_collapsed(vectors, levels, codes=distinct + 1)
    assert len(fit.codebooks[0]) == fit.report.distinct_sids == distinct
    assert [len(codebook) for codebook in fit.codebooks[1:]] == [1] * (levels - 1)
    assert [level.relative_error for level in fit.report.levels] == [0] * levels


def test_one_item():
    fit = fit_sids(np.zeros((1, 3), np.float32), levels=4, codes=8)
    assert fit.sids.tolist() == [[0, 0, 0, 0]]
    assert fit.report.ads_per_sid == {"p50": 1, "p99": 1, "max": 1}


def test_zero_vectors_are_items_like_others():
    vectors = gaussian(40)
    vectors[::7] = 0
    fit = fit_sids(vectors, levels=3, codes=8)
    assert len(np.unique(fit.sids[::7], axis=0)) == 1


@pytest.mark.parametrize("scale", [1e-25, 1e25])
def test_the_unit_of_the_vectors_does_not_matter(scale):
    vectors = gaussian(200)
    fit = fit_sids(vectors * np.float32(scale), levels=3, codes=16)
    assert fit.report.distinct_sids > 150
    assert fit.report.levels[2].relative_error < 0.2


def test_an_offset_larger_than_the_spread_keeps_the_items_apart():
    vectors = gaussian(200) + np.float32(1000)
    assert fit_sids(vectors, levels=3, codes=16).report.distinct_sids > 150


def test_same_seed_same_sids_other_seed_other_sids():
    vectors = gaussian(300)
    one, again, other = (fit_sids(vectors, 3, 16, seed).sids for seed in (1, 1, 2))
    np.testing.assert_array_equal(one, again)
    assert (one != other).any()


def test_mini_batches_come_close_to_full_k_means():
    centres = gaussian(3_000, 8)
    vectors = np.repeat(centres, 20, axis=0) + gaussian(60_000, 8, seed=1) / 4
    assert len(vectors) > MAX_FULL_KMEANS
    large = fit_sids(vectors, levels=2, codes=32)
    small = fit_sids(vectors[::2], levels=2, codes=32)
    for ours, full in zip(large.report.levels, small.report.levels, strict=True):
        assert ours.used == 32
        assert ours.relative_error < full.relative_error * 1.1


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e39, 1e31])
def test_an_entry_that_is_not_a_usable_number_is_named(bad):
    vectors = gaussian(5).astype(np.float64)
    vectors[3, 2] = bad
    with pytest.raises(SidError, match=r"embeddings\[3, 2\]: expected a finite number"):
        fit_sids(vectors, levels=2, codes=4)


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (3,)])
def test_embeddings_of_another_shape_are_a_value_error(shape):
    with pytest.raises(ValueError, match="must have shape"):
        fit_sids(np.zeros(shape, np.float32), levels=2, codes=4)


def test_assignment_refuses_other_dimensions():
    fit = fit_sids(gaussian(50, 8), levels=2, codes=4)
    with pytest.raises(SidError, match="5 dimensions, the codebooks 8"):
        assign_sids(gaussian(3, 5), fit.codebooks)
