"""The result of a search."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from grace.decode.steps import StepBuffers, faults_of, padded_size, tokens_of


@dataclass(frozen=True)
class Beams:
    """The finished search of B requests, best SID first; K is the plan's `num_sids`. On the CPU.

    Attributes:
        tokens: int64 [B, K, L].
        nodes: int64 [B, K], leaf of each SID; -1 for one outside the catalogue or a dead slot.
        scores: float32 [B, K]; -inf in a dead slot.
        faults: per request, what made its logits unusable, or None. It then has no SIDs.
        entered: per step t the trie nodes of the beams that entered it, int64 [B, M_t]; -1 for a
            dead beam or one outside the trie. Empty where nobody asked for it.
        entered_scores: per step their scores, float32 [B, M_t]; -inf marks a dead beam.
    """

    tokens: Tensor
    nodes: Tensor
    scores: Tensor
    faults: list[str | None]
    entered: list[Tensor]
    entered_scores: list[Tensor]

    @classmethod
    def of(cls, buffers: StepBuffers, vocab_size: int, batch: int, trace: bool = True) -> Beams:
        """Copy the first `batch` requests' result out of buffers, which may then be used again.

        Args:
            vocab_size: V, as `run_steps` returns it.
        """
        copies = BeamCopies.like(buffers)
        copies.take(buffers, batch, trace)
        if buffers.scores.device.type == "cuda":
            torch.cuda.current_stream(buffers.scores.device).synchronize()
        return copies.beams(vocab_size)


class BeamCopies:
    """Memory on the host that one search's result is copied into, search after search.

    Args:
        batch: requests of the largest search.
        widths: M_0..M_{L-1}, K.
        pinned: whether it is page-locked, so that copies from a GPU do not wait.
    """

    def __init__(self, batch: int, widths: Sequence[int], pinned: bool):
        self._widths = tuple(widths)
        num_levels, num_sids = len(widths) - 1, widths[-1]

        def new(*shape: int, dtype: torch.dtype) -> Tensor:
            return torch.empty(shape, dtype=dtype, pin_memory=pinned)

        self._broken = new(padded_size(batch, widths[:-1]), dtype=torch.bool)
        self._sids = new(batch * num_sids, num_levels + 1, dtype=torch.int32)
        # What enters each step, and last what the search found.
        self._nodes = [new(batch, width, dtype=torch.int64) for width in widths]
        self._scores = [new(batch, width, dtype=torch.float32) for width in widths]
        self._taken: tuple[int, int, bool] = (0, 0, False)

    @classmethod
    def like(cls, buffers: StepBuffers) -> BeamCopies:
        """Make room for what is in some buffers."""
        return cls(buffers.batch, buffers.widths, buffers.scores.device.type == "cuda")

    def take(self, buffers: StepBuffers, batch: int, trace: bool) -> None:
        """Enqueue the copies on the current stream; what was here is overwritten.

        Args:
            buffers: of a search that is no larger than this memory.
            batch: how many requests are searched for; the rest of the buffers is not looked at.
            trace: whether to copy which beams entered each step.
        """
        broken, rows = buffers.broken(), buffers.batch * buffers.widths[-1]
        self._broken[: len(broken)].copy_(broken, non_blocking=True)
        self._sids[:rows].copy_(buffers.sids, non_blocking=True)
        for t in range(0 if trace else len(buffers.chosen), len(buffers.widths)):
            nodes, scores = buffers.entering(t)
            self._nodes[t][:batch].copy_(nodes[:batch], non_blocking=True)
            self._scores[t][:batch].copy_(scores[:batch], non_blocking=True)
        self._taken = buffers.batch, batch, trace

    def beams(self, vocab_size: int) -> Beams:
        """Return the result, in memory of its own, once the copies have arrived.

        Args:
            vocab_size: V, as `run_steps` returns it.
        """
        rows, batch, trace = self._taken
        num_sids, last = self._widths[-1], len(self._widths) - 1
        broken = self._broken[: padded_size(rows, self._widths[:-1])]
        faults = faults_of(broken, rows, self._widths[:-1])[:batch]
        failed = torch.tensor([fault is not None for fault in faults])[:, None]
        traced = range(last if trace else 0)
        return Beams(
            tokens_of(self._sids[: batch * num_sids], num_sids, vocab_size),
            self._nodes[last][:batch].masked_fill(failed, -1),
            self._scores[last][:batch].masked_fill(failed, -torch.inf),
            faults,
            [self._nodes[t][:batch].clone() for t in traced],
            [self._scores[t][:batch].clone() for t in traced],
        )
