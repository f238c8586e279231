"""Beam search over SIDs for a batch of requests, inside the trie or without it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from grace.decode.free_select import free_select, prefix_ranks
from grace.decode.generator import Generator, Prefill
from grace.decode.plan import BeamPlan
from grace.errors import ModelError
from grace.index.trie import Trie, find_children
from grace.index.verdict import Verdict
from grace.kernels.constrained_select import constrained_select


@dataclass(frozen=True)
class Beams:
    """The finished search of B requests, best SID first; K is the plan's `num_sids`.

    Attributes:
        tokens: int64 [B, K, L].
        nodes: int64 [B, K], leaf of each SID; -1 for one outside the catalogue or a dead slot.
        scores: float32 [B, K]; -inf in a dead slot.
        faults: per request, what made its logits unusable, or None.
        entered: per step t the trie nodes of the beams that entered it, int64 [B, M_t]; -1 for a
            dead beam or one outside the trie.
        entered_scores: per step their scores, float32 [B, M_t]; -inf marks a dead beam.
    """

    tokens: Tensor
    nodes: Tensor
    scores: Tensor
    faults: list[str | None]
    entered: list[Tensor]
    entered_scores: list[Tensor]


@torch.inference_mode()
def beam_search(
    generator: Generator,
    prefill: Prefill,
    trie: Trie,
    verdict: Verdict | None,
    plan: BeamPlan,
    batch: int,
    inside: bool = True,
) -> Beams:
    """Run all L steps for a batch of B requests.

    Args:
        generator: scores tokens.
        prefill: the generator's state for these requests.
        trie: the catalogue.
        verdict: what the matcher says of these requests, or None to allow every prefix.
        plan: widths; steps wider than the number of prefixes end with dead slots.
        batch: B.
        inside: whether beams stay in the trie; otherwise they take any token, and `nodes` tells
            which SIDs the catalogue holds.

    Returns:
        The SIDs of each request. A request with a NaN or +inf logit in a live beam has none, and
        its fault is named; the others are as if they were alone.
    """
    nodes = torch.zeros(batch, 1, dtype=torch.int64)
    if verdict is not None:  # a request that may see nothing is dead before the first step
        nodes = torch.where(verdict.root[:, None], nodes, -1)
    scores = torch.where(nodes < 0, -torch.inf, 0.0).to(torch.float32)
    ranks, history = torch.zeros_like(nodes), torch.empty(batch, 1, 0, dtype=torch.int64)
    parents = tokens = None
    faults: list[str | None] = [None] * batch
    entered, entered_scores = [], []
    for t in range(trie.num_levels):
        entered.append(nodes)
        entered_scores.append(scores)
        width = plan.num_sids if t + 1 == trie.num_levels else plan.widths[t + 1]
        columns, logsumexp = generator.step(prefill.state, parents, tokens, t)
        columns, logsumexp = columns.cpu(), logsumexp.double().cpu()
        logsumexp = _note_faults(logsumexp, scores, faults, t)
        if inside:
            words = allowed = None
            if verdict is not None:
                words = verdict.words
                allowed = None if verdict.children is None else verdict.children(nodes)
            chosen = constrained_select(
                columns, logsumexp, scores, nodes, trie.child_offsets, trie.child_tokens, words,
                width, allowed=allowed,
            )  # fmt: skip
            parents, tokens, nodes, scores = (
                chosen.parents, chosen.tokens, chosen.nodes, chosen.scores,
            )  # fmt: skip
        else:
            beams, vocab = columns.shape[1:]
            width = min(width, beams * vocab)
            parents, tokens, scores = free_select(columns, logsumexp, scores, ranks, width)
            alive = scores > -torch.inf
            ranks = prefix_ranks(ranks.gather(1, parents), tokens, alive, vocab)
            nodes = _follow(trie, nodes.gather(1, parents).where(alive, -1), tokens)
        history = torch.cat(
            [history.gather(1, parents[..., None].expand(-1, -1, t)), tokens[..., None]], 2
        )
    return Beams(history, nodes, scores, faults, entered, entered_scores)


def _note_faults(logsumexp: Tensor, scores: Tensor, faults: list[str | None], t: int) -> Tensor:
    """Kill the beams of requests whose live logits are NaN or +inf, and say so in `faults`."""
    if logsumexp.shape != scores.shape:
        raise ModelError(
            f"step {t} must give a normaliser for each of {list(scores.shape)} beams, got "
            f"{list(logsumexp.shape)}"
        )
    broken = (scores > -torch.inf) & (logsumexp.isnan() | logsumexp.isposinf())
    for b in torch.nonzero(broken.any(1)).squeeze(1).tolist():
        faults[b] = f"the model's logits at step {t} hold NaN or +inf"
    failed = torch.tensor([fault is not None for fault in faults])
    return logsumexp.masked_fill(failed[:, None], -torch.inf)


def _follow(trie: Trie, nodes: Tensor, tokens: Tensor) -> Tensor:
    """Return int64 [B, M], the child of each node along a token; -1 where there is none."""
    start = nodes.clamp_min(0).reshape(-1).numpy()
    found = find_children(
        trie.child_offsets.numpy(), trie.child_tokens.numpy(), start, tokens.reshape(-1).numpy()
    )
    return torch.from_numpy(np.where(nodes.reshape(-1) < 0, -1, found)).reshape(nodes.shape)
