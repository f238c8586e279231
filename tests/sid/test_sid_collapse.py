"""A tokenizer that tells no items apart is refused; a small or repetitive catalogue is not."""

from __future__ import annotations

import numpy as np
import pytest
from sid_rows import gaussian

from grace.errors import SidError
from grace.sid import fit_sids


@pytest.mark.parametrize("items", [2, 9, 10, 500])
@pytest.mark.parametrize("collisions", ["cluster", "resolve"])
def test_all_items_on_one_vector(items, collisions):
    with pytest.raises(SidError, match=f"all {items} items have the same vector"):
        fit_sids(np.ones((items, 4), np.float32), 3, 8, collisions=collisions)


def test_most_items_on_one_sid():
    vectors = gaussian(100)
    vectors[:51] = 0
    with pytest.raises(SidError, match="51 of 100 items fall on one SID, more than 50%"):
        fit_sids(vectors, levels=3, codes=16)
    vectors[50] = 1
    assert fit_sids(vectors, levels=3, codes=16).report.ads_per_sid["max"] == 50


def test_outliers_that_take_all_codes_of_a_level():
    vectors = gaussian(2_000)
    vectors[:40] *= 1e4
    with pytest.raises(SidError, match=r"level 1 collapsed: .* under 10%"):
        fit_sids(vectors, levels=3, codes=32)


def test_levels_that_together_tell_too_little():
    rng = np.random.default_rng(0)
    vectors = gaussian(3_000, 16) * np.exp(rng.standard_normal((3_000, 1)))
    with pytest.raises(SidError, match=r"tell apart .* of what 6 levels of 8 codes could"):
        fit_sids(vectors, levels=6, codes=8)


def test_one_code_per_level():
    with pytest.raises(SidError, match="30 of 30 items fall on one SID"):
        fit_sids(gaussian(30), levels=3, codes=1)


def test_a_few_items_may_share_a_vector():
    vectors = np.array([[1, 0], [1, 0], [1, 0], [0, 1]], np.float32)
    assert fit_sids(vectors, levels=2, codes=4).report.distinct_sids == 2


def test_a_level_with_nothing_left_to_tell_has_not_collapsed():
    vectors = np.repeat(gaussian(20), 50, axis=0)
    fit = fit_sids(vectors, levels=4, codes=64)
    assert [level.used for level in fit.report.levels] == [20, 1, 1, 1]
    assert [level.resolved for level in fit.report.levels] == [1, 1, 1, 1]


def test_popular_vectors_do_not_count_as_collapse():
    """Five creatives hold most ads: that is the catalogue, not the tokenizer."""
    vectors = np.concatenate((gaussian(300), np.repeat(gaussian(5, seed=1), 2_000, axis=0)))
    report = fit_sids(vectors, levels=3, codes=64).report
    assert report.levels[0].perplexity < 0.1 * 64
    assert report.resolved > 0.9
