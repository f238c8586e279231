"""The causal model in training: one pass learns from every place of a history."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from grace.model.causal import Causal, CausalGenerator
from grace.train.sequence.search import rank_items
from grace.train.sequence.sids import SidTable
from grace.train.sequence.windows import Batch, Ranker


class CausalModel(nn.Module):
    """A `Causal` with its loss and its ranking.

    Args:
        model: knows the SIDs.
        table: the same SIDs, on the device where the model will be.
    """

    def __init__(self, model: Causal, table: SidTable):
        super().__init__()
        self.model, self.table = model, table

    def loss(
        self, batch: Batch, pieces: Sequence[tuple[int, int]], smoothing: float
    ) -> tuple[Tensor, Tensor]:
        """Return the loss of every next item, summed, and how many items that are.

        Of an item it is the negative log-probability of its SID and that of the item by the dense
        head, by the shares that the model's sizes give them.

        Args:
            batch: the rows of all pieces.
            pieces: of each, in their order, rows and the most items that one of them has.
            smoothing: share of a target that is spread over what else it could have been.
        """
        model = self.model
        histories, targets = batch.places(pieces)
        vectors = model.item_vectors()
        hidden = model.encode(histories, vectors)
        known, targets = targets >= 0, targets.clamp_min(0)
        share, losses = model.config.dense_loss, []
        if share < 1:
            prefix_vectors = model.tree.vectors(vectors)
            prefixes, places = model.tree.prefixes[targets], model.tree.places[targets]
            for level in range(model.config.num_levels):
                logits = model.code_logits(hidden, prefixes[:, level], level, prefix_vectors)
                losses.append((1 - share) * cross_entropy(logits, places[:, level], smoothing))
        if share > 0:
            logits = model.item_logits(hidden, vectors).float()
            losses.append(
                share
                * F.cross_entropy(logits, targets, reduction="none", label_smoothing=smoothing)
            )
        return torch.where(known, sum(losses), 0).sum(), known.sum()

    def ranker(self, beam_width: int) -> Ranker:
        """Return `(batch, k) -> [R, k]` item numbers by beam search."""
        generator = CausalGenerator(self.model)

        @torch.inference_mode()
        def rank(batch: Batch, k: int) -> Tensor:
            buffers = generator.prefill({"history": batch.items[:, :-1]})
            return rank_items(generator, buffers, self.table, len(batch.lengths), beam_width, k)

        return rank


def cross_entropy(logits: Tensor, targets: Tensor, smoothing: float) -> Tensor:
    """Return `[...]`, the cross-entropy of each target.

    Args:
        logits: `[..., C]`; -inf for what is out of the question.
        targets: int64 `[...]`.
        smoothing: share of a target spread evenly over what is not out of the question.
    """
    logits = logits.float()
    hit = logits.gather(-1, targets[..., None])[..., 0]
    if smoothing:
        possible = logits > -torch.inf
        spread = torch.where(possible, logits, 0).sum(-1) / possible.sum(-1)
        hit = hit.lerp(spread, smoothing)
    return logits.logsumexp(-1) - hit
