"""A causal transformer over items with a decoder of SIDs and a dense head."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from grace.model.causal.block import Block, FeedForwardBlock, HistoryEncoder, initialise
from grace.model.causal.config import CausalConfig
from grace.model.causal.tree import SidTree


class Causal(HistoryEncoder):
    """Histories of items in; out comes a distribution over SIDs, code by code, and over items.

    One pass of the transformer gives a hidden vector at every place of a history. Two heads read
    it: the decoder, code after code of the next item's SID; and the dense head, whose score of an
    item is the dot product with the item's vector. That vector, which is also what the transformer
    reads, is the item's embedding plus those of its codes. To the decoder a prefix is the mean
    vector of its items: that is what it reads of the codes so far, and what it compares with where
    it chooses the next one, among the codes that lead to an item.

    Args:
        config: the sizes.
        sids: int64 `[N, L]`, of each item.
        item_ids: int64 `[N]`, ascending.

    Attributes:
        tree: of the SIDs.
    """

    sids: Tensor
    item_ids: Tensor

    def __init__(self, config: CausalConfig, sids: Tensor, item_ids: Tensor):
        super().__init__()
        self.config = config
        self.register_buffer("sids", sids)
        self.register_buffer("item_ids", item_ids)
        self.tree = SidTree(sids)
        sizes = sids.max(0).values + 1
        rows = sids + sizes.cumsum(0) - sizes
        self.register_buffer("code_rows", rows, persistent=False)
        width = config.model_dim
        self.items = nn.Embedding(len(sids), width) if config.item_embeddings else None
        self.codes = nn.Embedding(int(sizes.sum()), width)
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

    def code_logits(
        self, hidden: Tensor, prefix: Tensor, level: int, prefix_vectors: list[Tensor]
    ) -> Tensor:
        """Return logits `[..., C]` of the children of prefixes, -inf where there is none.

        Args:
            hidden: `[..., model_dim]`, of `encode`.
            prefix: int64 `[...]`, prefixes of `level` codes.
            level: from 0.
            prefix_vectors: of `tree.vectors(item_vectors())`.
        """
        before = F.embedding(prefix, prefix_vectors[level]) + self.levels.weight[level]
        x = hidden + self.prefix_norm(before)
        for block in self.decoder:
            x = block(x)
        x = self.decoder_norm(x)
        if level == 0:  # all have the same children, which are all prefixes of one code
            return x @ prefix_vectors[1].T
        children, _, inside = self.tree.continued(prefix, level)
        vectors = F.embedding(children, prefix_vectors[level + 1])
        return (vectors @ x[..., None])[..., 0].masked_fill(~inside, -torch.inf)

    def item_logits(self, hidden: Tensor, vectors: Tensor) -> Tensor:
        """Return the dense head's logits `[..., N]`.

        Args:
            hidden: `[..., model_dim]`, of `encode`.
            vectors: of `item_vectors`.
        """
        # A multiple of 8 columns, as tensor cores take them.
        padded = F.pad(vectors, (0, 0, 0, -len(vectors) % 8))
        return (hidden @ padded.T)[..., : len(vectors)]
