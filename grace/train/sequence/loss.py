"""Cross-entropy as a sum and a count: however a batch is split, its gradient is the same."""

from __future__ import annotations

import torch
from torch import Tensor


def code_loss(
    logits: Tensor, tokens: Tensor, known: Tensor, blocks: list[slice], smoothing: float
) -> tuple[Tensor, Tensor]:
    """Return the cross-entropy of SIDs' tokens, summed, and how many tokens that are.

    Args:
        logits: `[R, L, vocabulary]`, of teacher forcing.
        tokens: `[R, L]` int64, the true ones; anything within the vocabulary in an empty row.
        known: `[R]` bool, False for an empty row.
        blocks: per level, the tokens that are its codes.
        smoothing: share of each target spread evenly over its level's codes. Other tokens get none:
            a code of another level is never right.
    """
    log_probs = logits.float().log_softmax(2)
    hit = log_probs.gather(2, tokens[..., None])[..., 0]
    if smoothing:
        spread = [log_probs[:, t, block].mean(1) for t, block in enumerate(blocks)]
        hit = hit.lerp(torch.stack(spread, 1), smoothing)
    return -torch.where(known[:, None], hit, 0).sum(), known.sum() * tokens.shape[1]
