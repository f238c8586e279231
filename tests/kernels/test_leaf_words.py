"""Ads to SIDs: the native version against the reference, the reference ad by ad."""

import numpy as np
import pytest
import torch
from exact_cases import LENGTHS, OFFSETS, check_leaf_words, random_words
from hypothesis import given
from hypothesis import strategies as st

from grace.kernels.leaf_words import leaf_words


@given(
    seed=st.integers(0, 2**32),
    sids=st.sampled_from([0, 1, 2, 1023, 1025, 40_000]),
    lengths=st.sampled_from(LENGTHS[:3]),
    dtype=st.sampled_from(OFFSETS),
)
def test_native_equals_reference(seed, sids, lengths, dtype):
    check_leaf_words(np.random.default_rng(seed), "native", "cpu", sids, lengths, dtype)


@pytest.mark.parametrize("ads", [4095, 4096, 4097, 100_000])
def test_one_sid_with_many_ads_among_others(ads):
    rng = np.random.default_rng(ads)
    for lengths in ((ads, 1), (1, 1, 1, 1, ads)):
        check_leaf_words(rng, "native", "cpu", 30, lengths, torch.int64)


def test_only_live_ads_count():
    words = torch.tensor([1, 2, -(2**31)], dtype=torch.int32)
    signatures = torch.tensor([0, 1, 2, 0], dtype=torch.int32)
    state = torch.tensor([0, 1, 0, 2], dtype=torch.uint8)
    offsets = torch.tensor([0, 2, 2, 3, 4])
    for backend in ("reference", "native"):
        found = leaf_words(words, signatures, state, offsets, backend=backend)
        assert found.tolist() == [1, 0, -(2**31), 0]


def test_no_number_of_workers_shows():
    rng = np.random.default_rng(0)
    words = random_words(rng, 100_000)
    inputs = (words, torch.arange(100_000).int(), torch.zeros(100_000).byte())
    for workers in (1, 2, 7):
        assert torch.equal(leaf_words(*inputs, torch.arange(100_001), workers=workers), words)


def test_what_does_not_fit_is_refused():
    words, state, offsets = torch.zeros(2).int(), torch.zeros(2).byte(), torch.tensor([0, 2])
    with pytest.raises(ValueError, match="ad_state must be uint8"):
        leaf_words(words, words, words, offsets)
    with pytest.raises(ValueError, match="ad_state must have 2 entries, got 1"):
        leaf_words(words, words, state[:1], offsets)
