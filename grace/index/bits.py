"""Rows of bits packed in 64-bit words."""

from __future__ import annotations

import numpy as np

from grace.kernels.words import MAX_REQUESTS as MAX_REQUESTS
from grace.kernels.words import pack_requests as pack_requests


def pack_bits(flags: np.ndarray) -> np.ndarray:
    """Return int64 [n, W] of bool [n, num_bits]: bit i of a row is bit i % 64 of word i // 64."""
    rows, num_bits = flags.shape
    words = -(-num_bits // 64)
    packed = np.zeros((rows, words * 8), np.uint8)
    packed[:, : -(-num_bits // 8)] = np.packbits(flags, axis=1, bitorder="little")
    return packed.view("<i8").astype(np.int64)


def count_bits(rows: np.ndarray) -> np.ndarray:
    """Return int64 [n], the number of set bits of each row of int64 [n, W]."""
    return np.bitwise_count(rows.view(np.uint64)).sum(1, dtype=np.int64)
