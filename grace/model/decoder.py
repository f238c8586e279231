"""The SID decoder: a small transformer whose beams share one context per request."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from grace.model.beam_cache import BeamCache
from grace.model.config import ModelConfig
from grace.model.layers import Attention, SwiGLU, beam_as_query_attention

KeyValue = tuple[Tensor, Tensor]


class DecoderLayer(nn.Module):
    """Self-attention over the prefix, cross-attention to the context, SwiGLU; all pre-normed."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.self_norm = nn.RMSNorm(config.model_dim)
        self.self_attention = Attention(config)
        self.cross_norm = nn.RMSNorm(config.model_dim)
        self.cross_attention = Attention(config)
        self.feed_forward_norm = nn.RMSNorm(config.model_dim)
        self.feed_forward = SwiGLU(config)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor, context: KeyValue) -> Tensor:
        """Transform whole prefixes `[B, M, T_q, model_dim]`; no position sees a later one."""
        normed = self.self_norm(x)
        query = self.self_attention.project_query(normed)
        key, value = self.self_attention.project_key_value(normed)
        heads = F.scaled_dot_product_attention(
            query.flatten(0, 1), key.flatten(0, 1), value.flatten(0, 1), is_causal=True
        ).unflatten(0, x.shape[:2])
        return self._finish(x, heads, context)

    def step(self, x: Tensor, context: KeyValue, cache: BeamCache, layer: int, t: int) -> Tensor:
        """Transform position t `[B, M, 1, model_dim]`, reading and extending the beams' cache."""
        normed = self.self_norm(x)
        query = self.self_attention.project_query(normed)
        key, value = cache.append(layer, t, *self.self_attention.project_key_value(normed))
        heads = F.scaled_dot_product_attention(
            query.flatten(0, 1), key.flatten(0, 1), value.flatten(0, 1)
        ).unflatten(0, x.shape[:2])
        return self._finish(x, heads, context)

    def _finish(self, x: Tensor, self_attended: Tensor, context: KeyValue) -> Tensor:
        x = x + self.dropout(self.self_attention.project_output(self_attended))
        query = self.cross_attention.project_query(self.cross_norm(x))
        heads = beam_as_query_attention(query, *context)
        x = x + self.dropout(self.cross_attention.project_output(heads))
        return x + self.dropout(self.feed_forward(self.feed_forward_norm(x)))


class Decoder(nn.Module):
    """Next-token logits of SID prefixes, given the context of their request.

    Position t reads the token of level t - 1 (a learned start token at t = 0) and its output head
    scores the tokens of level t; each level has its own embedding table and its own head.
    """

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.start = nn.Parameter(torch.empty(config.model_dim))
        self.positions = nn.Parameter(torch.empty(config.num_levels, config.model_dim))
        self.tokens = nn.ModuleList(
            nn.Embedding(config.vocab_size, config.model_dim) for _ in range(config.num_levels - 1)
        )
        self.layers = nn.ModuleList(DecoderLayer(config) for _ in range(config.decoder_layers))
        self.output_norm = nn.RMSNorm(config.model_dim)
        self.heads = nn.ModuleList(
            nn.Linear(config.model_dim, config.vocab_size) for _ in range(config.num_levels)
        )
        self.dropout = nn.Dropout(config.dropout)

    def project_context(self, context: Tensor) -> list[KeyValue]:
        """Return per layer the cross-attention keys and values `[B, H, T, D]` of the context."""
        return [layer.cross_attention.project_key_value(context) for layer in self.layers]

    def forward(self, context: list[KeyValue], sids: Tensor) -> Tensor:
        """Score whole SIDs, each token given the true ones before it.

        Args:
            context: of `project_context`.
            sids: `[B, M, L]` int64, M SIDs a request.

        Returns:
            Logits `[B, M, L, V]`.
        """
        batch_size, num_sids, num_levels = sids.shape
        x = [self.start.expand(batch_size, num_sids, -1)]
        x += [embed(sids[..., level]) for level, embed in enumerate(self.tokens)]
        x = self.dropout(torch.stack(x, dim=2) + self.positions)
        for layer, key_value in zip(self.layers, context, strict=True):
            x = layer(x, key_value)
        x = self.output_norm(x)
        return torch.stack([self.heads[t](x[..., t, :]) for t in range(num_levels)], dim=2)

    def step(
        self, context: list[KeyValue], cache: BeamCache, tokens: Tensor | None, t: int
    ) -> Tensor:
        """Score the tokens of level t for M beams whose cache holds the positions before t.

        Args:
            context: of `project_context`.
            cache: the beams' own keys and values, already in the order of these beams; extended.
            tokens: `[B, M]` int64, the token of level t - 1 of each beam; None at t = 0, M = 1.
            t: the level.

        Returns:
            Logits `[B, M, V]`.
        """
        if tokens is None:
            x = self.start.expand(cache.batch_size, 1, -1)
        else:
            x = self.tokens[t - 1](tokens)
        x = self.dropout(x + self.positions[t])[:, :, None]
        for i, (layer, key_value) in enumerate(zip(self.layers, context, strict=True)):
            x = layer.step(x, key_value, cache, i, t)
        return self.heads[t](self.output_norm(x[:, :, 0]))
