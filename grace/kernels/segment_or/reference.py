"""The specification of segment_or, in plain torch on any device."""

from __future__ import annotations

import torch
from torch import Tensor


def segment_or_reference(words: Tensor, offsets: Tensor) -> Tensor:
    """Return int32 [s]; the contract is `segment_or`'s, without a shift.

    A segment of 2^k..2^(k+1)-1 words is the OR of two windows of 2^k words that overlap, which does
    no harm since OR is idempotent; so every pass handles all segments of one size class at once.
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
