"""The specification of value_words and interval_words, in plain torch on any device."""

from __future__ import annotations

import torch
from torch import Tensor

from grace.kernels.segment_or.reference import segment_or_reference
from grace.kernels.words import pack_requests


def value_words_reference(
    include_offsets: Tensor,
    include_values: Tensor,
    exclude_offsets: Tensor,
    exclude_values: Tensor,
    carried: Tensor,
    known: int,
    everyone: int,
) -> Tensor:
    """Return int32 [R]; the contract is `value_words`'."""
    include_offsets, exclude_offsets = include_offsets.long(), exclude_offsets.long()
    included = segment_or_reference(carried[include_values.long()], include_offsets)
    excluded = segment_or_reference(carried[exclude_values.long()], exclude_offsets)
    asks = include_offsets[1:] > include_offsets[:-1]
    words = torch.where(asks, included, -1) & ~excluded & known
    words[0] = everyone
    return words.to(torch.int32)


def interval_words_reference(
    low: Tensor, high: Tensor, points: Tensor, closed: bool, everyone: int
) -> Tensor:
    """Return int32 [R]; the contract is `interval_words`'."""
    low, high = low[:, None], high[:, None]
    below = points <= high if closed else points < high
    words = pack_requests((low <= points) & below)
    words[0] = everyone
    return words
