"""Words that hold one bit per request, and rows of bits packed in 64-bit words."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

MAX_REQUESTS = 32  # bits of a word


def pack_requests(flags: Tensor) -> Tensor:
    """Return int32 [n] whose bit b is `flags[:, b]`; flags is bool [n, B] with B at most 32."""
    bits = 1 << torch.arange(flags.shape[1], dtype=torch.int64, device=flags.device)
    return (flags * bits).sum(1).to(torch.int32)  # the cast keeps the low 32 bits


def segment_or(words: Tensor, offsets: Tensor) -> Tensor:
    """OR the words of each segment.

    A segment of 2^k..2^(k+1)-1 words is the OR of two windows of 2^k words that overlap, which does
    no harm since OR is idempotent; so every pass handles all segments of one size class at once.

    Args:
        words: int32 [n].
        offsets: int64 [s + 1], ascending bounds into `words`.

    Returns:
        int32 [s]; 0 for an empty segment.
    """
    first, last = offsets[:-1], offsets[1:]
    lengths = last - first
    result = torch.zeros_like(first, dtype=words.dtype)
    longest = int(lengths.max()) if len(lengths) else 0
    windows, size = words, 1  # windows[i] = OR of words[i : i + size]
    while size <= longest:
        chosen = torch.nonzero((lengths >= size) & (lengths < 2 * size)).squeeze(1)
        result[chosen] = windows[first[chosen]] | windows[last[chosen] - size]
        if 2 * size <= longest:
            windows = windows[:-size] | windows[size:]
        size *= 2
    return result


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
