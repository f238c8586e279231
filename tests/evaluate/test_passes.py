"""Pass rates by stage, bucket and fixed number of ads, against counting one ad at a time."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grace.catalog import Attribute
from grace.evaluate.passes import (
    StageMasks,
    bucket_labels,
    bucketed_pass_rates,
    count_passes,
    default_bounds,
    fixed_pass_rates,
    pass_rates,
)

SCHEMA = (
    Attribute("gender", "categorical"),  # bit 3
    Attribute("place", "set"),  # bit 4
    Attribute("age", "range"),  # bit 5
)
STAGES = StageMasks.of(SCHEMA)


def test_stage_masks():
    assert (STAGES.bitmask, STAGES.bloom, STAGES.window) == (0b101000, 0b010000, 0b000111)
    assert StageMasks.of([Attribute("last", "set")] * 61).bloom == np.uint64(2**64 - 8)


@given(st.lists(st.integers(0, 63), max_size=50))
def test_count_passes_is_counting_one_ad_at_a_time(masks):
    stages_failed = [
        {
            "bitmask": bool(mask & 8 or mask & 32),
            "bloom": bool(mask & 16),
            "window": bool(mask & 7),
        }
        for mask in masks
    ]
    left = list(stages_failed)
    sequential = []
    for stage in ("bitmask", "bloom", "window"):
        left = [failed for failed in left if not failed[stage]]
        sequential.append(len(left))
    alone = [sum(not f[stage] for f in stages_failed) for stage in ("bloom", "window")]
    counts = count_passes(np.array(masks, np.uint64), STAGES)
    assert counts.tolist() == [len(masks), *sequential, *alone]
    assert sequential[-1] == masks.count(0)


def test_sequential_rates_multiply_to_final():
    counts = np.array([[100, 60, 30, 24, 50, 80], [300, 140, 50, 26, 150, 220]])
    rates = pass_rates(counts, total_users=8)
    assert (rates.users, rates.user_share, rates.generated_ads) == (2, 0.25, 400)
    assert rates.bitmask.value == 200 / 400
    assert rates.bloom.value == 80 / 200
    assert rates.window.value == 50 / 80
    assert rates.final.value == 50 / 400
    assert rates.bloom_alone.value == 200 / 400
    assert rates.window_alone.value == 300 / 400
    product = rates.bitmask.value * rates.bloom.value * rates.window.value
    assert product == pytest.approx(rates.final.value)


def test_the_papers_buckets():
    generated = np.array([0, 4999, 5000, 9999, 10_000, 70_000])
    counts = np.repeat(generated[:, None], 6, axis=1)
    rows = bucketed_pass_rates(counts, (5000, 10_000))
    assert list(rows) == ["< 5,000", "5,000-9,999", "≥ 10,000", "all"]
    assert [row.users for row in rows.values()] == [2, 2, 2, 6]
    assert [row.generated_ads for row in rows.values()] == [4999, 14_999, 80_000, 99_998]
    assert rows["< 5,000"].final.n == 2


def test_labels_and_no_bounds():
    assert bucket_labels(()) == []
    assert bucket_labels((7,)) == ["< 7", "≥ 7"]
    assert list(bucketed_pass_rates(np.zeros((2, 6), int), ())) == ["all"]


@given(st.lists(st.integers(0, 30), min_size=1, max_size=60).map(np.array))
def test_default_bounds_leave_no_bucket_empty(generated):
    bounds = default_bounds(generated)
    bucket = np.searchsorted(bounds, generated, side="right")
    assert set(bucket) == set(range(len(bounds) + 1))


def test_default_bounds_are_thirds():
    assert default_bounds(np.arange(90)) == (30, 60)
    assert default_bounds(np.full(5, 3)) == ()
    assert default_bounds(np.array([], int)) == ()


def test_fixed_pass_rates_compare_modes_on_the_same_requests():
    generated = {"valid": np.array([10, 50, 50]), "exact": np.array([50, 50, 10])}
    first = {
        "valid": np.array([[1, 0], [2, 10], [3, 20]]),
        "exact": np.array([[10, 50], [10, 50], [10, 0]]),
    }
    rates = fixed_pass_rates(generated, first, (10, 50))
    assert [(rate.ads, rate.users) for rate in rates["valid"]] == [(10, 3), (50, 1)]
    assert [rate.final.value for rate in rates["valid"]] == [6 / 30, 10 / 50]
    assert [rate.final.value for rate in rates["exact"]] == [1.0, 1.0]
    assert fixed_pass_rates(generated, first, (60, 70))["exact"][0].final.value is None


def test_off_does_not_take_requests_from_the_others():
    generated = {"off": np.array([1, 10]), "valid": np.array([10, 10])}
    first = {"off": np.array([[1], [7]]), "valid": np.array([[4], [5]])}
    rates = fixed_pass_rates(generated, first, (10,))
    assert (rates["valid"][0].users, rates["valid"][0].final.value) == (2, 9 / 20)
    assert (rates["off"][0].users, rates["off"][0].final.value) == (1, 7 / 10)
    assert fixed_pass_rates({"off": generated["off"]}, {"off": first["off"]}, (10,)) == {
        "off": rates["off"]
    }
