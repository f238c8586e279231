"""Words and packed rows against one bit at a time."""

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from grace.index.bits import (
    count_bits,
    pack_bits,
    pack_requests,
)


@given(st.integers(0, 2**32), st.integers(1, 32))
def test_pack_requests_sets_a_bit_per_request(seed, num_requests):
    flags = np.random.default_rng(seed).random((5, num_requests)) < 0.5
    words = pack_requests(torch.from_numpy(flags))
    assert words.dtype == torch.int32
    for row, word in zip(flags, words.tolist(), strict=True):
        assert [bool(word >> b & 1) for b in range(num_requests)] == row.tolist()


@given(st.integers(0, 2**32), st.sampled_from([0, 1, 8, 63, 64, 65, 200]))
def test_packed_rows_keep_every_bit(seed, num_bits):
    flags = np.random.default_rng(seed).random((7, num_bits)) < 0.5
    rows = pack_bits(flags)
    assert rows.shape == (7, -(-num_bits // 64))
    for bit in range(num_bits):
        assert ((rows[:, bit // 64] >> (bit % 64) & 1) == flags[:, bit]).all()
    assert (count_bits(rows) == flags.sum(1)).all()
