"""Rules decided for a batch: the native version against the reference."""

import numpy as np
import pytest
import torch
from exact_cases import LENGTHS, OFFSETS, check_interval_words, check_value_words
from hypothesis import given
from hypothesis import strategies as st

from grace.kernels.rule_words import interval_words, value_words


@given(
    seed=st.integers(0, 2**32),
    rules=st.sampled_from([1, 2, 1023, 40_000]),
    lengths=st.sampled_from(LENGTHS[:3]),
    dtype=st.sampled_from(OFFSETS),
)
def test_native_value_rules_equal_the_reference(seed, rules, lengths, dtype):
    check_value_words(np.random.default_rng(seed), "native", "cpu", rules, lengths, dtype)


def test_a_hundred_thousand_values_in_one_rule():
    check_value_words(np.random.default_rng(0), "native", "cpu", 9, (1, 100_000), torch.int32)


@given(
    seed=st.integers(0, 2**32),
    rules=st.sampled_from([1, 2, 1023, 1025, 40_000]),
    requests=st.integers(1, 32),
)
def test_native_intervals_equal_the_reference(seed, rules, requests):
    check_interval_words(np.random.default_rng(seed), "native", "cpu", rules, requests)


def test_included_and_excluded_values():
    include, exclude = torch.tensor([0, 0, 2, 2, 3]), torch.tensor([0, 0, 0, 1, 2])
    values = torch.tensor([0, 1, 0], dtype=torch.int32), torch.tensor([1, 1], dtype=torch.int32)
    carried = torch.tensor([0b001, 0b110], dtype=torch.int32)
    for backend in ("reference", "native"):
        words = value_words(
            include, values[0], exclude, values[1], carried, 0b111, 0b1111, backend=backend
        )
        assert words.tolist() == [0b1111, 0b111, 0b001, 0b001]


@pytest.mark.parametrize("backend", ["reference", "native"])
def test_windows_hold_their_start_and_not_their_end(backend):
    low, high = torch.tensor([-9, 5, 5, 6]), torch.tensor([9, 6, 5, 7])
    points = torch.tensor([4, 5, 6])
    words = interval_words(low, high, points, False, 7, backend=backend)
    assert words.tolist() == [7, 0b010, 0, 0b100]
    words = interval_words(low, high, points, True, 7, backend=backend)
    assert words.tolist() == [7, 0b110, 0b010, 0b100]


def test_what_does_not_fit_is_refused():
    point = torch.zeros(33)
    with pytest.raises(ValueError, match="low must be float64 or int64"):
        interval_words(point, point, point, True, 1)
    point = point.double()
    with pytest.raises(ValueError, match="a word holds 32 requests, got 33"):
        interval_words(point, point, point, True, 1)
