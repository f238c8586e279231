"""Intervals over users and seeds."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grace.evaluate.ranking.intervals import qualities


def one(values: np.ndarray):
    return qualities({"metric": np.asarray(values, float)})["metric"]


def test_the_value_is_the_mean_over_users_and_seeds():
    quality = one([[1, 0, 0, 1], [1, 1, 0, 1]])
    assert quality.value == pytest.approx(5 / 8)
    assert quality.by_seed == (0.5, 0.75)
    assert quality.num_users == 4


def test_users_alone_give_the_normal_interval():
    hits = np.random.default_rng(0).random((1, 4000)) < 0.1
    quality = one(hits)
    half = 1.96 * np.sqrt(quality.value * (1 - quality.value) / 4000)
    assert quality.high - quality.low == pytest.approx(2 * half, rel=0.12)
    assert (quality.low, quality.high) == (quality.users_low, quality.users_high)


def test_seeds_that_differ_widen_the_interval_by_their_own_variance():
    """Four seeds far apart, users all alike: what is left is the spread of the seeds' mean."""
    shares = np.array([0.2, 0.4, 0.5, 0.7])
    quality = one(np.repeat(shares[:, None], 500, axis=1))
    assert quality.users_low == pytest.approx(quality.users_high)
    spread = 1.96 * shares.std(ddof=1) / 2
    assert quality.high - quality.low == pytest.approx(2 * spread, rel=0.2)


def test_equal_seeds_add_nothing():
    hits = np.random.default_rng(1).random(300) < 0.3
    alone, three = one(hits[None]), one(np.stack([hits] * 3))
    assert (alone.users_low, alone.users_high) == (three.users_low, three.users_high)
    assert three.low == pytest.approx(alone.low, abs=0.01)
    assert three.high == pytest.approx(alone.high, abs=0.01)


def test_metrics_share_their_draws_and_repeat_themselves():
    hits = (np.random.default_rng(2).random((3, 200)) < 0.5).astype(float)
    first = qualities({"a": hits, "b": hits / 2})
    assert first == qualities({"a": hits, "b": hits / 2})
    assert first["b"].low == pytest.approx(first["a"].low / 2)


def test_no_users_are_no_number():
    assert one(np.zeros((3, 0))).value is None
    assert qualities({}) == {}


@given(st.integers(1, 4), st.integers(1, 30), st.integers(0, 10**6))
def test_intervals_hold_the_value_and_stay_between_0_and_1(seeds, users, seed):
    quality = one(np.random.default_rng(seed).random((seeds, users)) < 0.5)
    assert 0 <= quality.low <= quality.value <= quality.high <= 1
