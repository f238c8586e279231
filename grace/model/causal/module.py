"""A causal transformer over items with a decoder of SIDs and a dense head."""

from __future__ import annotations

import itertools

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from grace.model.causal.block import Block, FeedForwardBlock, initialise
from grace.model.causal.config import CausalConfig


class Causal(nn.Module):
    """Histories of items in; out comes a distribution over SIDs, code by code, and over items.

    One pass of the transformer gives a hidden vector at every place of a history. Two heads read
    it: the decoder, code after code of the next item's SID; and the dense head, whose score of an
    item is the dot product with the item's vector. That vector, which is also what the transformer
    reads, is the item's embedding plus those of its codes. The decoder reads and writes codes by
    the same embeddings.

    Args:
        config: the sizes.
        sids: int64 `[N, L]`, of each item.
        item_ids: int64 `[N]`, ascending.

    Attributes:
        starts: per level, its first row in the table of codes.
        sizes: codes of each level.
    """

    sids: Tensor
    item_ids: Tensor

    def __init__(self, config: CausalConfig, sids: Tensor, item_ids: Tensor):
        super().__init__()
        self.config = config
        self.register_buffer("sids", sids)
        self.register_buffer("item_ids", item_ids)
        self.sizes = tuple((sids.max(0).values + 1).tolist())
        self.starts = (0, *itertools.accumulate(self.sizes[:-1]))
        rows = sids + torch.tensor(self.starts, device=sids.device)
        self.register_buffer("code_rows", rows, persistent=False)
        width = config.model_dim
        self.items = nn.Embedding(len(sids), width) if config.item_embeddings else None
        self.codes = nn.Embedding(sum(self.sizes), width)
        self.positions = nn.Embedding(config.max_items, width)
        self.norm = nn.LayerNorm(width)
        self.blocks = nn.ModuleList(
            Block(width, config.num_heads, config.ffn_dim, config.dropout)
            for _ in range(config.num_layers)
        )
        self.levels = nn.Embedding(config.num_levels, width)
        self.prefix_norm = nn.LayerNorm(width)
        self.decoder = nn.ModuleList(
            FeedForwardBlock(width, config.ffn_dim, config.dropout)
            for _ in range(config.decoder_layers)
        )
        self.decoder_norm = nn.LayerNorm(width)
        self.dropout = nn.Dropout(config.dropout)
        initialise(self)

    def item_vectors(self) -> Tensor:
        """Return `[N, model_dim]`."""
        vectors = self.codes(self.code_rows).sum(1)
        return vectors if self.items is None else vectors + self.items.weight

    def encode(self, items: Tensor, vectors: Tensor) -> Tensor:
        """Return hidden vectors `[R, n, model_dim]`; none depends on a later item.

        Args:
            items: int64 `[R, n]`, item numbers, oldest first; -1 for padding, last.
            vectors: of `item_vectors`.
        """
        x = F.embedding(items.clamp_min(0), vectors) + self.positions.weight[: items.shape[1]]
        x = self.dropout(self.norm(x))
        for block in self.blocks:
            x = block(x)
        return x

    def level_logits(self, hidden: Tensor, written: Tensor, level: int) -> Tensor:
        """Return logits `[..., C]` of the C codes of a level.

        Args:
            hidden: `[..., model_dim]`, of `encode`.
            written: `[..., model_dim]`, the embeddings of the codes before, summed.
            level: from 0.
        """
        return self._compare(self._read(hidden, written + self.levels.weight[level]), level)

    def sid_logits(self, hidden: Tensor, items: Tensor) -> list[Tensor]:
        """Return logits `[..., C]` of every level, each given an item's true codes before it.

        Args:
            hidden: `[..., model_dim]`, of `encode`.
            items: int64 `[...]`, item numbers.
        """
        codes = self.codes(self.code_rows[items])
        before = F.pad(codes[..., :-1, :], (0, 0, 1, 0)).cumsum(-2)
        x = self._read(hidden[..., None, :], before + self.levels.weight)
        return [self._compare(x[..., level, :], level) for level in range(self.config.num_levels)]

    def _read(self, hidden: Tensor, prefix: Tensor) -> Tensor:
        x = hidden + self.prefix_norm(prefix)
        for block in self.decoder:
            x = block(x)
        return self.decoder_norm(x)

    def _compare(self, x: Tensor, level: int) -> Tensor:
        start, size = self.starts[level], self.sizes[level]
        return x @ self.codes.weight[start : start + size].T

    def item_logits(self, hidden: Tensor, vectors: Tensor, history: Tensor) -> Tensor:
        """Return the dense head's logits `[..., N]`, -inf for items of the history if excluded.

        Args:
            hidden: `[..., model_dim]`, of `encode`.
            vectors: of `item_vectors`.
            history: int64 `[..., n]`, item numbers that may not come again, any of them repeated;
                not below 0.
        """
        logits = hidden @ vectors.T
        return logits.scatter(-1, history, -torch.inf) if self.config.exclude_history else logits
