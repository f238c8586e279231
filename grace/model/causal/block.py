"""Layers of causal models over items."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Block(nn.Module):
    """Causal self-attention and a feed-forward layer, each added and then normed."""

    def __init__(self, width: int, num_heads: int, ffn_dim: int, dropout: float):
        super().__init__()
        self.num_heads, self.dropout_rate = num_heads, dropout
        self.attend = nn.Linear(width, 3 * width)
        self.attended = nn.Linear(width, width)
        self.attention_norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, ffn_dim)
        self.down = nn.Linear(ffn_dim, width)
        self.feed_forward_norm = nn.LayerNorm(width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, shapes: Sequence[tuple[int, int]]) -> Tensor:
        """Transform histories; no position sees a later one, so padding comes last.

        Args:
            x: `[T, width]`, histories of several lengths, one after the other.
            shapes: rows R and padded length n of those of each length; T is the sum of R * n.
        """
        parts = self.attend(x).split([rows * length for rows, length in shapes])
        heads = [self._attended(*each) for each in zip(parts, shapes, strict=True)]
        x = self.attention_norm(x + self.dropout(self.attended(torch.cat(heads))))
        return self.feed_forward_norm(x + self.dropout(self.down(F.gelu(self.up(x)))))

    def _attended(self, part: Tensor, shape: tuple[int, int]) -> Tensor:
        query, key, value = part.view(*shape, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)
        dropout = self.dropout_rate if self.training else 0.0
        heads = F.scaled_dot_product_attention(query, key, value, dropout_p=dropout, is_causal=True)
        return heads.transpose(1, 2).reshape(len(part), -1)


class FeedForwardBlock(nn.Module):
    """A feed-forward layer, normed before and added."""

    def __init__(self, width: int, ffn_dim: int, dropout: float):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, ffn_dim)
        self.down = nn.Linear(ffn_dim, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Transform `[..., width]`."""
        return x + self.dropout(self.down(F.gelu(self.up(self.norm(x)))))


class HistoryEncoder(nn.Module):
    """What models over the items of histories share; they bring the layers.

    Attributes:
        positions: an embedding for every place.
        norm: of what goes into the blocks.
        dropout: behind it.
        blocks: `Block`s.
    """

    positions: nn.Embedding
    norm: nn.LayerNorm
    dropout: nn.Dropout
    blocks: nn.ModuleList

    def encode(self, histories: Sequence[Tensor], vectors: Tensor) -> Tensor:
        """Return hidden vectors `[T, width]`; none depends on a later item.

        Args:
            histories: int64 `[R, n]` each, R histories of n item numbers, oldest first; -1 for
                padding, last. T is the number of all places.
            vectors: `[N, width]`, of the items.
        """
        shapes = [tuple(items.shape) for items in histories]
        items = torch.cat([items.flatten() for items in histories]).clamp_min(0)
        parts = F.embedding(items, vectors).split([rows * length for rows, length in shapes])
        placed = [
            part.view(*shape, -1) + self.positions.weight[: shape[1]]
            for part, shape in zip(parts, shapes, strict=True)
        ]
        x = self.dropout(self.norm(torch.cat([each.flatten(0, 1) for each in placed])))
        for block in self.blocks:
            x = block(x, shapes)
        return x


def initialise(model: nn.Module) -> None:
    """Draw small weights of linear layers and embeddings; biases are zero."""
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=0.02)
        if isinstance(module, nn.Linear):
            nn.init.zeros_(module.bias)
