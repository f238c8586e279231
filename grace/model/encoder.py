"""An InterFormer-like encoder: profile and behaviour, side by side, told of each other every layer.

After InterFormer (Zeng et al., 2025, arXiv:2411.09852), with its three arches. The interaction arch
works on feature tokens, by factorisation machines as in Wukong (Zhang et al., 2024,
arXiv:2403.02545). The sequence arch works on events, by a personalised feed-forward and attention.
The cross arch tells each side, in a few tokens, what the other holds, before either moves on.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from grace.model.config import ModelConfig
from grace.model.embedding import FeatureEmbedding
from grace.model.features import FeatureSpec
from grace.model.layers import Attention, SwiGLU

FACTORISATION_RANK = 16
"""Columns that inner products of feature tokens are projected on, as Wukong does."""


class FeatureSummary(nn.Module):
    """What the sequence arch is told of the profile: one gated vector a request."""

    def __init__(self, config: ModelConfig, num_tokens: int):
        super().__init__()
        self.norm = nn.LayerNorm(config.model_dim, bias=False)
        self.mix = nn.Linear(num_tokens * config.model_dim, config.model_dim)
        self.gate = nn.Linear(config.model_dim, config.model_dim)

    def forward(self, features: Tensor) -> Tensor:
        """Return `[B, model_dim]` of feature tokens `[B, num_tokens, model_dim]`."""
        summary = self.mix(self.norm(features).flatten(1))
        return summary * torch.sigmoid(self.gate(summary))


class SequenceSummary(nn.Module):
    """What the interaction arch is told of the behaviour: learned queries pool it, each gated."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.queries = nn.Parameter(torch.empty(config.num_summary_tokens, config.model_dim))
        self.norm = nn.LayerNorm(config.model_dim, bias=False)
        self.attention = Attention(config)
        self.gate = nn.Linear(config.model_dim, config.model_dim)

    def forward(self, events: Tensor, valid: Tensor) -> Tensor:
        """Return `[B, num_summary_tokens, model_dim]` of sequence tokens and their mask."""
        queries = self.queries.expand(len(events), -1, -1)
        summary = self.attention(queries, self.norm(events), valid)
        return summary * torch.sigmoid(self.gate(summary))


class InteractionArch(nn.Module):
    """New feature tokens from linear mixes and inner products of the old ones and the summary."""

    def __init__(self, config: ModelConfig, num_tokens: int):
        super().__init__()
        num_sources = num_tokens + config.num_summary_tokens
        self.num_tokens = num_tokens
        self.norm = nn.LayerNorm(config.model_dim, bias=False)
        self.mix = nn.Linear(num_sources, num_tokens, bias=False)
        self.columns = nn.Linear(num_sources, FACTORISATION_RANK, bias=False)
        self.products = nn.Sequential(
            nn.LayerNorm(num_sources * FACTORISATION_RANK),
            nn.Linear(num_sources * FACTORISATION_RANK, config.ffn_dim),
            nn.SiLU(),
            nn.Linear(config.ffn_dim, num_tokens * config.model_dim),
        )
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, features: Tensor, summary: Tensor) -> Tensor:
        """Return new feature tokens `[B, num_tokens, model_dim]`."""
        sources = self.norm(torch.cat([features, summary], dim=1))
        transposed = sources.transpose(1, 2)
        linear = self.mix(transposed).transpose(1, 2)
        products = self.products((sources @ self.columns(transposed)).flatten(1))
        return features + self.dropout(linear + products.unflatten(1, (self.num_tokens, -1)))


class SequenceArch(nn.Module):
    """New sequence tokens: a feed-forward whose hidden units the profile scales, then attention."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.feed_forward_norm = nn.LayerNorm(config.model_dim, bias=False)
        self.feed_forward = SwiGLU(config)
        self.personal = nn.Linear(config.model_dim, config.ffn_dim)
        self.attention_norm = nn.LayerNorm(config.model_dim, bias=False)
        self.attention = Attention(config)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, events: Tensor, valid: Tensor, summary: Tensor) -> Tensor:
        """Return new sequence tokens, as many; those at padding mean nothing."""
        scale = 2 * torch.sigmoid(self.personal(summary))[:, None]
        events = events + self.dropout(self.feed_forward(self.feed_forward_norm(events), scale))
        normed = self.attention_norm(events)
        return events + self.dropout(self.attention(normed, normed, valid))


class EncoderLayer(nn.Module):
    """The cross arch around one step of the other two."""

    def __init__(self, config: ModelConfig, num_feature_tokens: int):
        super().__init__()
        self.feature_summary = FeatureSummary(config, num_feature_tokens)
        self.sequence_summary = SequenceSummary(config)
        self.interaction = InteractionArch(config, num_feature_tokens)
        self.sequence = SequenceArch(config)

    def forward(self, features: Tensor, events: Tensor, valid: Tensor) -> tuple[Tensor, Tensor]:
        """Return new feature tokens and new sequence tokens."""
        feature_summary = self.feature_summary(features)
        sequence_summary = self.sequence_summary(events, valid)
        return (
            self.interaction(features, sequence_summary),
            self.sequence(events, valid, feature_summary),
        )


class ContextQueries(nn.Module):
    """T context tokens, whatever the history's length: T queries attend to all encoder tokens.

    The last `num_recent_tokens` queries start from the newest sequence tokens (a learned stand-in
    where the history is shorter), the others are learned.
    """

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.num_recent = config.num_recent_tokens
        self.queries = nn.Parameter(torch.empty(config.num_context_tokens, config.model_dim))
        self.query_norm = nn.LayerNorm(config.model_dim, bias=False)
        self.source_norm = nn.LayerNorm(config.model_dim, bias=False)
        self.attention = Attention(config)
        self.feed_forward_norm = nn.LayerNorm(config.model_dim, bias=False)
        self.feed_forward = SwiGLU(config)
        self.output_norm = nn.LayerNorm(config.model_dim, bias=False)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, features: Tensor, events: Tensor, valid: Tensor) -> Tensor:
        """Return context tokens `[B, T, model_dim]`, all of them valid."""
        queries = self.queries.expand(len(events), -1, -1)
        recent = min(self.num_recent, events.shape[1] - 1)
        if recent:
            newest = events[:, -recent:] * valid[:, -recent:, None]
            queries = torch.cat([queries[:, :-recent], queries[:, -recent:] + newest], dim=1)
        sources = self.source_norm(torch.cat([features, events], dim=1))
        source_valid = torch.cat([valid.new_ones(features.shape[:2]), valid], dim=1)
        attended = self.attention(self.query_norm(queries), sources, source_valid)
        context = queries + self.dropout(attended)
        context = context + self.dropout(self.feed_forward(self.feed_forward_norm(context)))
        return self.output_norm(context)


class Encoder(nn.Module):
    """From the model's inputs to the context tokens of each request."""

    def __init__(self, config: ModelConfig, spec: FeatureSpec):
        super().__init__()
        self.embedding = FeatureEmbedding(config, spec)
        self.layers = nn.ModuleList(
            EncoderLayer(config, self.embedding.num_feature_tokens)
            for _ in range(config.encoder_layers)
        )
        self.context = ContextQueries(config)

    def forward(self, inputs: dict[str, Tensor]) -> Tensor:
        """Return context tokens `[B, T, model_dim]` of a batch of `FeatureTable.batch`."""
        features, events, valid = self.embedding(inputs)
        for layer in self.layers:
            features, events = layer(features, events, valid)
        return self.context(features, events, valid)
