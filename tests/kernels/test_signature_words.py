"""Signatures decided for a batch: the native version against the reference."""

import numpy as np
import pytest
import torch
from exact_cases import check_signature_words
from hypothesis import given
from hypothesis import strategies as st

from grace.kernels.signature_words import signature_words


@given(
    seed=st.integers(0, 2**32),
    signatures=st.sampled_from([1, 2, 1023, 1025, 40_000]),
    columns=st.integers(1, 9),
)
def test_native_equals_reference(seed, signatures, columns):
    check_signature_words(np.random.default_rng(seed), "native", "cpu", signatures, columns)


def test_what_does_not_fit_is_refused():
    column = torch.zeros(3).int()
    with pytest.raises(ValueError, match="2 columns need as many tables, got 1"):
        signature_words([column, column], [column])
    with pytest.raises(ValueError, match="0 columns"):
        signature_words([], [])
    with pytest.raises(ValueError, match="columns must be int32"):
        signature_words([column.long()], [column], backend="native")
    with pytest.raises(ValueError, match="out must be contiguous int32"):
        signature_words([column], [column], out=torch.zeros(2).int())
