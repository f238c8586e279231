"""Beam search with any generator for a batch of requests, inside the trie or without it."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from grace.decode.beams import Beams
from grace.decode.free_select import free_select, prefix_ranks
from grace.decode.generator import Generator, Prefill
from grace.decode.plan import BeamPlan
from grace.decode.steps import Entering, StepBuffers, fault_at, run_steps
from grace.errors import ModelError
from grace.index.trie import Trie, find_children
from grace.index.verdict import Verdict


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
    """Run all L steps for a batch of B requests, one after the other, with any generator.

    Args:
        generator: scores tokens.
        prefill: the generator's state for these requests.
        trie: the catalogue. Selection runs where it is; on the CPU where `inside` is false.
        verdict: what the matcher says of these requests, or None to allow every prefix; on the
            trie's device.
        plan: widths; steps wider than the number of prefixes end with dead slots.
        batch: B.
        inside: whether beams stay in the trie; otherwise they take any token, and `nodes` tells
            which SIDs the catalogue holds.

    Returns:
        The SIDs of each request. A request with a NaN or +inf logit in a live beam has none, and
        its fault is named; the others are as if they were alone.
    """
    if not inside:
        return _search_outside(generator, prefill, trie, plan, batch)
    device = trie.child_tokens.device
    buffers = StepBuffers.allocate(batch, plan, device)

    def score(entering: Entering, t: int, out: Tensor) -> Tensor:
        rows = (entering.parents, entering.tokens)
        columns, logsumexp = _step(generator, prefill, *rows, t, out.shape)
        out.copy_(logsumexp)
        return columns.to(device)

    def masks(nodes: Tensor, most: int) -> tuple[Tensor | None, Tensor | None]:
        return (None, None) if verdict is None else verdict.masks(nodes)

    def admit() -> Tensor:
        everyone = torch.ones(batch, dtype=torch.bool, device=device)
        return everyone if verdict is None else verdict.root

    vocab_size = run_steps(score, trie, masks, admit, buffers)
    return Beams.of(buffers, vocab_size, batch)


def _search_outside(
    generator: Generator, prefill: Prefill, trie: Trie, plan: BeamPlan, batch: int
) -> Beams:
    """Search among all SIDs; the trie only says which of them are in the catalogue."""
    nodes, scores = torch.zeros(batch, 1, dtype=torch.int64), torch.zeros(batch, 1)
    ranks, history = torch.zeros_like(nodes), torch.empty(batch, 1, 0, dtype=torch.int64)
    parents = tokens = None
    faults: list[str | None] = [None] * batch
    entered, entered_scores = [], []
    for t in range(trie.num_levels):
        entered.append(nodes)
        entered_scores.append(scores)
        width = plan.num_sids if t + 1 == trie.num_levels else plan.widths[t + 1]
        columns, logsumexp = _step(generator, prefill, parents, tokens, t, scores.shape)
        columns, logsumexp = columns.cpu(), logsumexp.double().cpu()
        logsumexp = _note_faults(logsumexp, scores, faults, t)
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


def _step(
    generator: Generator,
    prefill: Prefill,
    parents: Tensor | None,
    tokens: Tensor | None,
    t: int,
    shape: torch.Size,
) -> tuple[Tensor, Tensor]:
    columns, logsumexp = generator.step(prefill.state, parents, tokens, t)
    if logsumexp.shape != shape:
        raise ModelError(
            f"step {t} must give a normaliser for each of {list(shape)} beams, got "
            f"{list(logsumexp.shape)}"
        )
    return columns, logsumexp


def _note_faults(logsumexp: Tensor, scores: Tensor, faults: list[str | None], t: int) -> Tensor:
    """Kill the beams of requests whose live logits are NaN or +inf, and say so in `faults`."""
    broken = (scores > -torch.inf) & (logsumexp.isnan() | logsumexp.isposinf())
    for b in torch.nonzero(broken.any(1)).squeeze(1).tolist():
        faults[b] = fault_at(t)
    failed = torch.tensor([fault is not None for fault in faults])
    return logsumexp.masked_fill(failed[:, None], -torch.inf)


def _follow(trie: Trie, nodes: Tensor, tokens: Tensor) -> Tensor:
    """Return int64 [B, M], the child of each node along a token; -1 where there is none."""
    start = nodes.clamp_min(0).reshape(-1).numpy()
    found = find_children(
        trie.child_offsets.numpy(), trie.child_tokens.numpy(), start, tokens.reshape(-1).numpy()
    )
    return torch.from_numpy(np.where(nodes.reshape(-1) < 0, -1, found)).reshape(nodes.shape)
