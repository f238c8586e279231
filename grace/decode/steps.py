"""The L steps of a search inside the trie, as tensor operations alone: eager or in a CUDA graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from grace.decode.plan import BeamPlan
from grace.index.trie import Trie
from grace.kernels.block_reorder import block_reorder
from grace.kernels.constrained_select import Selection, Workspace, constrained_select

Score = Callable[["Entering", int, Tensor], Tensor]
"""(entering, t, out) -> logits [B, M, V]; writes their normalisers, float64 [B, M], to `out`."""
Masks = Callable[[Tensor, int], tuple[Tensor | None, Tensor | None]]
"""(nodes [B, M], most children of one) -> (words, allowed) of `constrained_select`."""


@dataclass(frozen=True)
class Entering:
    """The beams that enter a step.

    Attributes:
        parents: int64 `[B, M]`, rows of the step before; None at t = 0, where M is 1.
        tokens: int64 `[B, M]`, the tokens of level t - 1; None at t = 0.
        nodes: int64 `[B, M]`, trie nodes, -1 for a dead beam; they mean nothing yet at t = 0.
        prefixes: int32 `[B * M, L + 1]`: 0, then for each level j before t the number
            `1 + j * V + token`, one for each level and token.
    """

    parents: Tensor | None
    tokens: Tensor | None
    nodes: Tensor
    prefixes: Tensor


@dataclass(frozen=True)
class StepBuffers:
    """What B requests' steps write, in place: M_t beams enter step t, K SIDs are left.

    Scores and normalisers of all steps lie in one piece each, step by step, so that one comparison
    finds what is wrong with any of them.

    Attributes:
        widths: M_0..M_{L-1}, K.
        scores: float32, of what enters each step and of the SIDs: `B * M_t` numbers a step, and
            what aligns the next (`step_views`).
        logsumexp: float64, likewise, but for the SIDs.
        root: int64 `[B, 1]`, 0 for a request that may enter the trie, else -1.
        chosen: what each step selects.
        start: int32 `[B, L + 1]`, `Entering.prefixes` of the first step.
        sids: int32 `[B * K, L + 1]`, the same of the SIDs.
    """

    widths: tuple[int, ...]
    scores: Tensor
    logsumexp: Tensor
    root: Tensor
    chosen: list[Selection]
    start: Tensor
    sids: Tensor

    @classmethod
    def allocate(cls, batch: int, plan: BeamPlan, device: str | torch.device) -> StepBuffers:
        """Make buffers for a plan that is no wider than the trie."""
        widths = (*plan.widths, plan.num_sids)

        def new(*shape: int, dtype: torch.dtype = torch.int64) -> Tensor:
            return torch.empty(shape, dtype=dtype, device=device)

        scores = new(padded_size(batch, widths), dtype=torch.float32)
        per_step = step_views(scores, batch, widths)
        chosen = [
            Selection(*(new(batch, width) for _ in range(3)), per_step[t])
            for t, width in enumerate(widths[1:], 1)
        ]
        return cls(
            widths,
            scores,
            new(padded_size(batch, widths[:-1]), dtype=torch.float64),
            new(batch, 1),
            chosen,
            torch.zeros(batch, len(widths), dtype=torch.int32, device=device),
            new(batch * plan.num_sids, len(widths), dtype=torch.int32),
        )

    @property
    def batch(self) -> int:
        """B."""
        return len(self.root)

    @property
    def num_bytes(self) -> int:
        """Bytes of all of it; the scores in `chosen` are views."""
        tensors = [self.scores, self.logsumexp, self.root, self.start, self.sids]
        tensors += [x for step in self.chosen for x in (step.parents, step.tokens, step.nodes)]
        return sum(tensor.nbytes for tensor in tensors)

    def entering(self, t: int) -> tuple[Tensor, Tensor]:
        """Return nodes int64 and scores float32 of the beams that enter step t, each `[B, M_t]`.

        At t = L they are those of the SIDs, `[B, K]`.
        """
        if t == 0:
            return self.root, step_views(self.scores, self.batch, self.widths)[0]
        return self.chosen[t - 1].nodes, self.chosen[t - 1].scores

    def normalisers(self, t: int) -> Tensor:
        """Return float64 `[B, M_t]`, those of step t."""
        return step_views(self.logsumexp, self.batch, self.widths[:-1])[t]

    def broken(self) -> Tensor:
        """Return bool, as `logsumexp` is laid out: a live beam's logits hold NaN or +inf.

        What it says between two steps means nothing.
        """
        live = self.scores[: len(self.logsumexp)] > -torch.inf
        return live & (self.logsumexp < torch.inf).logical_not()


def run_steps(
    score: Score,
    trie: Trie,
    masks: Masks,
    admit: Callable[[], Tensor],
    buffers: StepBuffers,
    workspace: Workspace | None = None,
) -> int:
    """Run all steps; the result is in `buffers`, whatever they held before.

    Nothing here waits for a device, and every size follows from the buffers, so that a CUDA graph
    may hold all of it. A request does not see another one's beams.

    Args:
        score: scores the tokens of a step.
        trie: on the buffers' device.
        masks: what the matcher says of the children of some nodes.
        admit: returns bool `[B]`, whether a request may enter the trie at all. Called when the
            first step is scored, which needs no matcher: it may be at work until then.
        buffers: for B requests.
        workspace: memory of the selections.

    Returns:
        V, the model's.
    """
    parents, tokens, prefixes = None, None, buffers.start
    for t in range(trie.num_levels):
        nodes, scores = buffers.entering(t)
        normalisers = buffers.normalisers(t)
        columns = score(Entering(parents, tokens, nodes, prefixes), t, normalisers)
        if t == 0:
            allowed = admit()[:, None]
            torch.add(allowed, -1, out=nodes)
            torch.log(allowed, out=scores)  # 0 of true, -inf of false
        most = trie.most_children[t]
        words, children = masks(nodes, most)
        chosen = constrained_select(
            columns, normalisers, scores, nodes, trie.child_offsets, trie.child_tokens, words,
            buffers.widths[t + 1], allowed=children, max_children=most, workspace=workspace,
            out=buffers.chosen[t],
        )  # fmt: skip
        parents, tokens = chosen.parents, chosen.tokens
        vocab_size = columns.shape[2]
        prefixes = block_reorder(prefixes, parents, t + 1, 1 + t * vocab_size, own=tokens)
    buffers.sids.copy_(prefixes)
    return vocab_size


def tokens_of(sids: Tensor, num_sids: int, vocab_size: int) -> Tensor:
    """Return int64 `[B, K, L]`, the tokens of `StepBuffers.sids`; K is given, V is the model's."""
    levels = torch.arange(sids.shape[1] - 1, device=sids.device)
    return (sids[:, 1:] - (1 + levels * vocab_size)).view(-1, num_sids, len(levels))


def faults_of(broken: Tensor, batch: int, widths: Sequence[int]) -> list[str | None]:
    """Say per request what made its logits unusable.

    Args:
        broken: of `StepBuffers.broken`, on the CPU.
        batch: B.
        widths: M_0..M_{L-1}.
    """
    faults: list[str | None] = [None] * batch
    if broken.any():
        for t, step in enumerate(step_views(broken, batch, widths)):
            for b in torch.nonzero(step.any(1)).squeeze(1).tolist():
                faults[b] = faults[b] or fault_at(t)
    return faults


def fault_at(t: int) -> str:
    """Say what made a request's logits unusable."""
    return f"the model's logits at step {t} hold NaN or +inf"


def step_views(flat: Tensor, batch: int, widths: Sequence[int]) -> list[Tensor]:
    """Return the `[B, M_t]` of each step in a piece of memory."""
    views, start = [], 0
    for width in widths:
        views.append(flat[start : start + batch * width].view(batch, width))
        start += padded_size(batch, [width])
    return views


def padded_size(batch: int, widths: Sequence[int]) -> int:
    """Numbers in a piece of memory that holds `[B, M_t]` of each step."""
    # Triton compiles anew for pointers that are no multiple of 16 bytes.
    return sum(-(-batch * width // 4) * 4 for width in widths)
