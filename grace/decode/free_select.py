"""Selection without a catalogue: every token may follow every beam (mode `off`)."""

from __future__ import annotations

import torch
from torch import Tensor


def free_select(
    columns: Tensor, logsumexp: Tensor, scores: Tensor, ranks: Tensor, width: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Extend each beam by any token and keep the best, ties in the order of the prefixes.

    Args:
        columns: float32 [B, M, V], logits.
        logsumexp: float64 [B, M], normalisers; a beam whose normaliser is not finite is dead.
        scores: float32 [B, M], cumulative log-probabilities; -inf for a dead beam.
        ranks: int64 [B, M], a permutation of 0..M-1: place of each beam's prefix in lexicographic
            order.
        width: how many to keep, at most M * V.

    Returns:
        (parents int64, tokens int64, scores float32), each [B, width], best first; score -inf,
        parent 0 and token 0 in a dead slot.
    """
    batch, _, vocab = columns.shape
    order = torch.argsort(ranks, dim=1)
    step = (columns.double() - logsumexp[..., None]).float()
    dead = ~torch.isfinite(logsumexp)[..., None]
    total = torch.where(dead, -torch.inf, scores[..., None] + step)
    ordered = total.gather(1, order[..., None].expand(-1, -1, vocab)).reshape(batch, -1)
    best, values = stable_topk(ordered, width)
    parents = order.gather(1, best // vocab)
    alive = values > -torch.inf
    return parents.where(alive, 0), (best % vocab).where(alive, 0), values


def stable_topk(values: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return positions int64 [B, k] and values of the k largest of [B, n], ties by position.

    `torch.topk` finds the k-th value, but leaves open which of several equal ones it returns.
    """
    threshold = torch.topk(values, k, dim=1).values[:, -1:]
    above = values > threshold
    level = values == threshold
    room = k - above.sum(1, keepdim=True)
    chosen = above | (level & (level.cumsum(1) <= room))
    positions = torch.nonzero(chosen)[:, 1].reshape(len(values), k)
    kept = values.gather(1, positions)
    order = torch.argsort(kept, dim=1, descending=True, stable=True)
    return positions.gather(1, order), kept.gather(1, order)


def prefix_ranks(parent_ranks: Tensor, tokens: Tensor, alive: Tensor, vocab_size: int) -> Tensor:
    """Return int64 [B, M], the lexicographic place of each chosen prefix; dead ones come last.

    Args:
        parent_ranks: int64 [B, M], place of each one's parent.
        tokens: int64 [B, M], the token added.
        alive: bool [B, M].
        vocab_size: V.
    """
    keys = torch.where(alive, parent_ranks * vocab_size + tokens, torch.iinfo(torch.int64).max)
    order = torch.argsort(keys, dim=1, stable=True)
    return torch.argsort(order, dim=1)
