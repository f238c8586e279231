"""From the tensors of a `FeatureTable` to feature tokens and sequence tokens."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from grace.model.config import ModelConfig
from grace.model.feature_table import NUM_GAP_ROWS
from grace.model.features import FeatureSpec
from grace.model.fields import (
    PADDING,
    BagField,
    CategoricalField,
    Field,
    NumericField,
    SequenceField,
)


class CategoricalEmbedding(nn.Module):
    """One row of a table per value; its own rows for missing and unknown values."""

    def __init__(self, config: ModelConfig, field: CategoricalField):
        super().__init__()
        self.rows = nn.Embedding(field.vocabulary.num_rows, config.model_dim)

    def forward(self, rows: Tensor) -> Tensor:
        """Return `[B, model_dim]` for embedding rows `[B]`."""
        return self.rows(rows)


class NumericEmbedding(nn.Module):
    """A line through the embedding space, and a point beside it for a missing number."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.line = nn.Linear(1, config.model_dim)
        self.missing = nn.Parameter(torch.zeros(config.model_dim))

    def forward(self, values: Tensor) -> Tensor:
        """Return `[B, model_dim]` for standardised numbers `[B]`, NaN where missing."""
        missing = values.isnan()[:, None]
        # The NaN is replaced before the product: there it would poison the gradients of the line.
        return torch.where(missing, self.missing, self.line(values.nan_to_num()[:, None]))


class BagEmbedding(nn.Module):
    """The mean of the rows of a bag's values."""

    def __init__(self, config: ModelConfig, field: BagField):
        super().__init__()
        self.rows = nn.EmbeddingBag(
            field.vocabulary.num_rows, config.model_dim, mode="mean", padding_idx=PADDING
        )

    def forward(self, rows: Tensor) -> Tensor:
        """Return `[B, model_dim]` for embedding rows `[B, max_length]`, padding left out."""
        return self.rows(rows)


class SequenceEmbedding(nn.Module):
    """What an event adds to its SID: action, time gap, and place counted from the newest."""

    def __init__(self, config: ModelConfig, field: SequenceField):
        super().__init__()
        self.actions = nn.Embedding(field.actions.num_rows, config.model_dim)
        self.gaps = nn.Embedding(NUM_GAP_ROWS, config.model_dim)
        self.positions = nn.Parameter(torch.empty(field.max_length, config.model_dim))

    def forward(self, actions: Tensor, gaps: Tensor) -> Tensor:
        """Return `[B, max_length, model_dim]` for embedding rows `[B, max_length]`."""
        return self.actions(actions) + self.gaps(gaps) + self.positions


class SidEmbedding(nn.Module):
    """A SID as the sum of its tokens' rows, a table per level."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.rows = nn.Embedding(config.num_levels * config.vocab_size, config.model_dim)
        first_rows = torch.arange(config.num_levels) * config.vocab_size
        self.register_buffer("first_rows", first_rows, persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return `[..., model_dim]` for SIDs `[..., L]` int64."""
        return self.rows(tokens + self.first_rows).sum(-2)


class FeatureEmbedding(nn.Module):
    """All fields of a `FeatureSpec`, as two sets of tokens.

    Each set begins with a learned token, so that neither is ever empty: a model without profile
    fields, or a user without history, takes the same path as any other.
    """

    def __init__(self, config: ModelConfig, spec: FeatureSpec):
        super().__init__()
        self.feature_start = nn.Parameter(torch.empty(1, config.model_dim))
        self.sequence_start = nn.Parameter(torch.empty(1, config.model_dim))
        self.dropout = nn.Dropout(config.dropout)
        self.tokens = SidEmbedding(config)
        # Module names are positions, since a field's name may clash with a module's attribute.
        self.feature_names = [f.name for f in spec.fields if not isinstance(f, SequenceField)]
        self.features = nn.ModuleList(
            _embed_feature(config, f) for f in spec.fields if not isinstance(f, SequenceField)
        )
        self.sequence_names = [field.name for field in spec.sequences]
        self.sequences = nn.ModuleList(SequenceEmbedding(config, field) for field in spec.sequences)

    @property
    def num_feature_tokens(self) -> int:
        """Feature tokens of a request, the learned one included."""
        return 1 + len(self.features)

    def forward(self, inputs: dict[str, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """Embed a batch.

        Args:
            inputs: the tensors of `FeatureTable.batch`.

        Returns:
            Feature tokens `[B, num_feature_tokens, model_dim]`; sequence tokens `[B, num_events,
            model_dim]`: the learned one, then each field's events, newest last; and `[B,
            num_events]` bool, False on padding.
        """
        batch_size = next(iter(inputs.values())).shape[0]
        features = [self.feature_start.expand(batch_size, 1, -1)]
        features += [
            embed(inputs[name])[:, None]
            for name, embed in zip(self.feature_names, self.features, strict=True)
        ]
        start = self.sequence_start.expand(batch_size, 1, -1)
        sequences, valid = [start], [torch.ones_like(start[..., 0], dtype=torch.bool)]
        for name, embed in zip(self.sequence_names, self.sequences, strict=True):
            details = embed(inputs[f"{name}.actions"], inputs[f"{name}.gaps"])
            sequences.append(self.tokens(inputs[f"{name}.tokens"]) + details)
            valid.append(inputs[f"{name}.valid"])
        return (
            self.dropout(torch.cat(features, dim=1)),
            self.dropout(torch.cat(sequences, dim=1)),
            torch.cat(valid, dim=1),
        )


def _embed_feature(config: ModelConfig, field: Field) -> nn.Module:
    if isinstance(field, CategoricalField):
        return CategoricalEmbedding(config, field)
    if isinstance(field, BagField):
        return BagEmbedding(config, field)
    assert isinstance(field, NumericField)
    return NumericEmbedding(config)
