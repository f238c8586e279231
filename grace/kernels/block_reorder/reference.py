"""The specification of block_reorder, in plain torch on any device."""

from __future__ import annotations

import torch
from torch import Tensor


def block_reorder_reference(
    table: Tensor, parents: Tensor, t: int, first_block: int, own: Tensor | None
) -> Tensor:
    """Return int32 `[B * M, L]`; the contract is `block_reorder`'s."""
    batch = parents.shape[0]
    requests = torch.arange(batch, device=table.device)[:, None]
    reordered = table.unflatten(0, (batch, -1))[requests, parents].flatten(0, 1)
    if own is None:
        own = torch.arange(parents.numel(), device=table.device)
    reordered[:, t] = first_block + own.flatten()
    reordered[:, t + 1 :] = -1
    return reordered
