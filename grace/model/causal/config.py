"""Sizes of the causal model."""

from __future__ import annotations

import dataclasses

from grace.errors import ConfigError
from grace.model.config import LARGEST_SIZE, LARGEST_SIZES, check_types


@dataclasses.dataclass(frozen=True, kw_only=True)
class CausalConfig:
    """Sizes, and how the two heads share the work.

    Attributes:
        num_levels: L, codes of a SID.
        vocab_size: V, the most codes of a level.
        max_items: of a history that are read, the newest.
        model_dim: width of hidden vectors and of embeddings.
        num_layers: transformer blocks over the items of a history.
        num_heads: of attention; they divide `model_dim`.
        ffn_dim: hidden width of feed-forward layers.
        decoder_layers: feed-forward blocks over a SID's codes.
        dropout: share of activations dropped while training.
        item_embeddings: whether an item has an embedding of its own beside those of its codes.
        dense_loss: share of the dense head in the loss; the SID decoder has the rest.
        dense_score: share of the dense head's log-probability in the score of a SID.
        exclude_history: whether the dense head gives the items of the history nothing in retrieval:
            right where nobody takes an item twice. The loss is over all items all the same.
    """

    num_levels: int
    vocab_size: int
    max_items: int
    model_dim: int = 128
    num_layers: int = 2
    num_heads: int = 2
    ffn_dim: int = 512
    decoder_layers: int = 1
    dropout: float = 0.5
    item_embeddings: bool = True
    dense_loss: float = 0.5
    dense_score: float = 0.5
    exclude_history: bool = False

    def __post_init__(self) -> None:
        check_types(self)
        names = ("num_levels", "vocab_size", "max_items", "model_dim", "num_layers", "num_heads",
                 "ffn_dim", "decoder_layers")  # fmt: skip
        for name in names:
            most = LARGEST_SIZES.get(name, LARGEST_SIZE)
            if not 1 <= getattr(self, name) <= most:
                raise ConfigError(f"{name} must be from 1 to {most}, got {getattr(self, name)}")
        if self.model_dim % self.num_heads:
            raise ConfigError(
                f"num_heads must divide model_dim ({self.model_dim}), got {self.num_heads}"
            )
        if not 0 <= self.dropout < 1:
            raise ConfigError(f"dropout must be at least 0 and below 1, got {self.dropout}")
        for name in ("dense_loss", "dense_score"):
            if not 0 <= getattr(self, name) <= 1:
                raise ConfigError(f"{name} must be from 0 to 1, got {getattr(self, name)}")
        for loss, head in ((0, "dense head"), (1, "SID decoder")):
            if self.dense_loss == loss != self.dense_score:
                raise ConfigError(
                    f"dense_score must be {loss} where dense_loss is: the {head} is not trained"
                )
