"""The training loss."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor


def sid_loss(logits: Tensor, sids: Tensor) -> Tensor:
    """Return the cross-entropy of target SIDs, averaged over levels and summed over SIDs.

    A sum, so that micro-batches add up to their batch; divide by `num_targets` for the mean.

    Args:
        logits: `[B, M, L, V]` float, of teacher forcing.
        sids: `[B, M, L]` int64, the targets; -1 throughout where there is none.
    """
    # Label -1 is left out, and every SID has L tokens, so the mean over levels is a division.
    loss = F.cross_entropy(
        logits.float().flatten(0, 2), sids.flatten(), ignore_index=-1, reduction="sum"
    )
    return loss / sids.shape[-1]


def num_targets(sids: Tensor) -> int:
    """Count the target SIDs of `[B, M, L]`."""
    return int((sids[..., 0] >= 0).sum())
