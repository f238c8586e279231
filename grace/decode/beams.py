"""The result of a search."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from grace.decode.steps import StepBuffers


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
        last = buffers.chosen[-1]
        found = [buffers.broken(), buffers.sids, last.nodes[:batch], last.scores[:batch]]
        entered = [buffers.entering(t) for t in range(len(buffers.chosen))] if trace else []
        found += [tensor[:batch] for pair in entered for tensor in pair]
        broken, sids, nodes, scores, *entered = _on_cpu(found)
        faults = buffers.faults(broken)[:batch]
        failed = torch.tensor([fault is not None for fault in faults])[:, None]
        return cls(
            buffers.tokens(sids, vocab_size)[:batch],
            nodes.masked_fill(failed, -1),
            scores.masked_fill(failed, -torch.inf),
            faults,
            entered[::2],
            entered[1::2],
        )


def _on_cpu(tensors: list[Tensor]) -> list[Tensor]:
    """Return copies on the CPU, after one wait for the device."""
    if tensors[0].device.type == "cpu":
        return [tensor.clone() for tensor in tensors]
    copies = [torch.empty(t.shape, dtype=t.dtype, pin_memory=True) for t in tensors]
    for copy, tensor in zip(copies, tensors, strict=True):
        copy.copy_(tensor, non_blocking=True)
    torch.cuda.current_stream(tensors[0].device).synchronize()
    return copies
