"""The specification of attention to ancestors, in plain torch on any device."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def ancestor_attention_reference(
    own: Tensor, past: Sequence[Tensor], ancestors: Sequence[Tensor], bias: Tensor
) -> Tensor:
    """Return float32 `[rows, H * D]`; the contract is `ancestor_attention`'s."""
    positions = [rows[place] for rows, place in zip(past, ancestors, strict=True)] + [own]
    heads = [position.unflatten(1, (3, len(bias), -1)) for position in positions]
    query = heads[-1][:, 0]
    scores = torch.stack([(query * position[:, 1]).sum(2) for position in heads], 2) + bias
    weights = scores.softmax(2)
    parts = [weights[..., j, None] * position[:, 2] for j, position in enumerate(heads)]
    return torch.stack(parts).sum(0).flatten(1)
