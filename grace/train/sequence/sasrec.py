"""SASRec (Kang and McAuley, 2018) with cross-entropy over all items.

Klenitskiy and Vasilev (2023) found that this loss is what makes it strong.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from grace.errors import ConfigError
from grace.model.causal.block import Block, HistoryEncoder, initialise
from grace.model.config import LARGEST_SIZE, check_types
from grace.train.sequence.windows import Batch, Ranker


@dataclasses.dataclass(frozen=True, kw_only=True)
class SasrecConfig:
    """Sizes.

    Attributes:
        model_dim: width of hidden vectors and of the items' embeddings.
        num_layers: transformer blocks.
        num_heads: of attention; they divide `model_dim`.
        ffn_dim: hidden width of feed-forward layers.
        dropout: share of activations dropped while training.
    """

    model_dim: int = 64
    num_layers: int = 2
    num_heads: int = 2
    ffn_dim: int = 256
    dropout: float = 0.5

    def __post_init__(self) -> None:
        check_types(self)
        for name in ("model_dim", "num_layers", "num_heads", "ffn_dim"):
            if not 1 <= getattr(self, name) <= LARGEST_SIZE:
                raise ConfigError(
                    f"{name} must be from 1 to {LARGEST_SIZE}, got {getattr(self, name)}"
                )
        if self.model_dim % self.num_heads:
            raise ConfigError(
                f"num_heads must divide model_dim ({self.model_dim}), got {self.num_heads}"
            )
        if not 0 <= self.dropout < 1:
            raise ConfigError(f"dropout must be at least 0 and below 1, got {self.dropout}")


class Sasrec(HistoryEncoder):
    """Histories in, a score for every item out: dot products with the items' embeddings.

    Args:
        config: the sizes.
        num_items: N.
        history: items that are read, at most.
    """

    def __init__(self, config: SasrecConfig, num_items: int, history: int):
        super().__init__()
        self.config, self.history = config, history
        self.items = nn.Embedding(num_items, config.model_dim)
        self.positions = nn.Embedding(history, config.model_dim)
        self.norm = nn.LayerNorm(config.model_dim)
        self.blocks = nn.ModuleList(
            Block(config.model_dim, config.num_heads, config.ffn_dim, config.dropout)
            for _ in range(config.num_layers)
        )
        self.dropout = nn.Dropout(config.dropout)
        initialise(self)

    def loss(
        self, batch: Batch, pieces: Sequence[tuple[int, int]], smoothing: float
    ) -> tuple[Tensor, Tensor]:
        """Return the cross-entropy of every next item, summed, and how many items that are.

        Args:
            batch: the rows of all pieces.
            pieces: of each, in their order, rows and the most items that one of them has.
            smoothing: share of a target that is spread over all items.
        """
        histories, targets = batch.places(pieces)
        logits = self.encode(histories, self.items.weight) @ self.items.weight.T
        loss = F.cross_entropy(
            logits.float(), targets, ignore_index=-1, reduction="sum", label_smoothing=smoothing
        )
        return loss, (targets >= 0).sum()

    def ranker(self, beam_width: int) -> Ranker:
        """Return `(batch, k) -> [R, k]` item numbers; all items are scored, without a search."""
        return self._rank

    @torch.inference_mode()
    def _rank(self, batch: Batch, k: int) -> Tensor:
        items = batch.items[:, :-1]
        hidden = self.encode([items], self.items.weight).view(*items.shape, -1)
        rows = torch.arange(len(hidden), device=hidden.device)
        scores = hidden[rows, (batch.lengths - 1).clamp_min(0)] @ self.items.weight.T
        return first_by_score(scores.float(), k)


def first_by_score(scores: Tensor, k: int) -> Tensor:
    """Return the columns of the k largest scores `[R, N]`, best first, ties by column; -1 past N.

    `topk` breaks ties as it likes: what ties with the k-th score is settled here.
    """
    width = min(k, scores.shape[1])
    least = scores.topk(width, dim=1).values[:, -1:]
    # Above the k-th score all are in; of those equal to it the first ones are.
    above, equal = scores > least, scores == least
    room = width - above.sum(1, keepdim=True)
    kept = above | (equal & (equal.cumsum(1) <= room))
    columns = kept.nonzero()[:, 1].view(len(scores), width)
    order = scores.gather(1, columns).sort(dim=1, descending=True, stable=True).indices
    columns = columns.gather(1, order)
    if width == k:
        return columns
    return F.pad(columns, (0, k - width), value=-1)
