"""Metrics against values worked out by hand and against other formulas."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from grace.evaluate.metrics import bootstrap, mean, ndcg, recall, wilson

ranks = st.lists(st.integers(0, 60), min_size=1, max_size=40).map(np.array)


def test_recall_and_ndcg_by_hand():
    places = np.array([1, 2, 3, 10, 11, 0])
    assert recall(places, 10).tolist() == [True, True, True, True, False, False]
    expected = [1, 1 / math.log2(3), 1 / 2, 1 / math.log2(11), 0, 0]
    assert ndcg(places, 10) == pytest.approx(expected)
    assert recall(places, 1).sum() == ndcg(places, 1).sum() == 1


@given(ranks, st.integers(1, 60))
def test_ndcg_is_the_definition_over_the_whole_list(places, k):
    for place, measured in zip(places, ndcg(places, k), strict=True):
        gains = [float(position == place) for position in range(1, k + 1)]
        discounted = sum(gain / math.log2(i + 1) for i, gain in enumerate(gains, 1))
        assert measured == pytest.approx(discounted)


@given(ranks, st.integers(1, 59))
def test_metrics_grow_with_k_and_ndcg_stays_below_recall(places, k):
    assert (recall(places, k) <= recall(places, k + 1)).all()
    assert (ndcg(places, k) <= ndcg(places, k + 1)).all()
    assert (ndcg(places, k) <= recall(places, k)).all()


@given(st.integers(0, 50), st.integers(1, 50))
def test_wilson_is_scipys(hits, misses):
    estimate = wilson(np.arange(hits + misses) < hits)
    reference = stats.binomtest(hits, hits + misses).proportion_ci(0.95, method="wilson")
    assert estimate.value == hits / (hits + misses)
    assert (estimate.low, estimate.high) == pytest.approx((reference.low, reference.high))
    assert estimate.low <= estimate.value <= estimate.high
    assert estimate.n == hits + misses


def test_wilson_by_hand():
    # 8 of 10: centre (0.8 + z²/20) / (1 + z²/10), as in any textbook's example.
    estimate = wilson(np.array([True] * 8 + [False] * 2))
    assert (estimate.low, estimate.high) == pytest.approx((0.4902, 0.9433), abs=1e-4)


def test_nothing_measured_is_no_number():
    assert wilson(np.array([], bool)) == mean(np.array([]))
    assert wilson(np.array([], bool)).value is None
    no_ads = bootstrap(np.zeros(3), np.zeros(3))
    assert (no_ads.value, no_ads.low, no_ads.high, no_ads.n) == (None, None, None, 3)


def test_bootstrap_is_a_ratio_of_sums_not_a_mean_of_ratios():
    estimate = bootstrap(np.array([1, 0]), np.array([1, 99]))
    assert estimate.value == 0.01


def test_bootstrap_repeats_itself_and_holds_the_value():
    generator = np.random.default_rng(3)
    accepted = generator.integers(0, 20, 200)
    generated = accepted + generator.integers(0, 20, 200)
    first, second = bootstrap(accepted, generated), bootstrap(accepted, generated)
    assert first == second
    assert first.low < first.value < first.high


def test_bootstrap_draws_requests_not_ads():
    """100 ads of one fate per request say no more than one ad: the interval is as wide."""
    passed = np.array([1, 0] * 50)
    few = bootstrap(passed, np.ones(100))
    many = bootstrap(passed * 100, np.full(100, 100))
    assert (few.low, few.high) == pytest.approx((many.low, many.high))


def test_bootstrap_mean_is_as_wide_as_the_normal_interval():
    values = np.random.default_rng(1).normal(5, 2, 400)
    estimate = mean(values)
    half = 1.96 * values.std() / 20
    assert estimate.value == pytest.approx(values.mean())
    assert estimate.high - estimate.low == pytest.approx(2 * half, rel=0.15)
