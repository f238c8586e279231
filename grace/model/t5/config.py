"""Sizes of a T5 over the tokens of Semantic IDs, in the words of Hugging Face's `T5Config`."""

from __future__ import annotations

import dataclasses

from grace.errors import ConfigError
from grace.model.config import LARGEST_SIZE, check_types

FEED_FORWARDS = ("relu", "gated-gelu")
LARGEST_VOCABULARY = 2**31 - 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class T5Config:
    """Sizes of the model; names and meaning are transformers', defaults those of TIGER's paper.

    Attributes:
        vocab_size: tokens of the model, all levels, users and special ones together.
        d_model: width of every hidden vector.
        d_kv: width of one attention head; `num_heads * d_kv` need not be `d_model`.
        d_ff: hidden width of the feed-forward layers.
        num_heads: attention heads of encoder and decoder.
        num_layers: blocks of the encoder.
        num_decoder_layers: blocks of the decoder.
        relative_attention_num_buckets: distances that the position bias tells apart.
        relative_attention_max_distance: tokens at least so far apart share a bucket.
        dropout_rate: share of activations dropped while training; never at inference.
        layer_norm_epsilon: added to the mean square.
        feed_forward_proj: `relu` (T5) or `gated-gelu` (T5 1.1).
        tie_word_embeddings: whether the head is the embedding table.
        scale_decoder_outputs: whether logits are divided by the root of `d_model`, as T5 does with
            a tied head.
        decoder_start_token_id: the token that the decoder starts from.
    """

    vocab_size: int
    d_model: int = 128
    d_kv: int = 64
    d_ff: int = 1024
    num_heads: int = 6
    num_layers: int = 4
    num_decoder_layers: int = 4
    relative_attention_num_buckets: int = 32
    relative_attention_max_distance: int = 128
    dropout_rate: float = 0.1
    layer_norm_epsilon: float = 1e-6
    feed_forward_proj: str = "relu"
    tie_word_embeddings: bool = True
    scale_decoder_outputs: bool = True
    decoder_start_token_id: int = 0

    def __post_init__(self) -> None:
        check_types(self)
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if type(value) is not int or field.type == "float":
                continue
            largest = LARGEST_VOCABULARY if field.name == "vocab_size" else LARGEST_SIZE
            least = 0 if field.name == "decoder_start_token_id" else 1
            if not least <= value <= largest:
                raise ConfigError(f"{field.name} must be from {least} to {largest}, got {value}")
        if self.decoder_start_token_id >= self.vocab_size:
            raise ConfigError(
                f"decoder_start_token_id must be below vocab_size ({self.vocab_size}), got "
                f"{self.decoder_start_token_id}"
            )
        if not 0 <= self.dropout_rate < 1:
            raise ConfigError(
                f"dropout_rate must be at least 0 and below 1, got {self.dropout_rate}"
            )
        if not 0 < self.layer_norm_epsilon < 1:
            raise ConfigError(
                f"layer_norm_epsilon must be between 0 and 1, got {self.layer_norm_epsilon}"
            )
        if self.feed_forward_proj not in FEED_FORWARDS:
            raise ConfigError(
                f"feed_forward_proj must be one of {', '.join(FEED_FORWARDS)}, got "
                f"{self.feed_forward_proj!r}"
            )
        buckets, distance = (
            self.relative_attention_num_buckets, self.relative_attention_max_distance,
        )  # fmt: skip
        # Half of the encoder's buckets look ahead, and half of each half holds single distances.
        if buckets < 4 or buckets % 2 or distance <= buckets // 2:
            raise ConfigError(
                "relative_attention_num_buckets must be even and at least 4, and "
                "relative_attention_max_distance more than its half, got "
                f"{buckets} and {distance}"
            )
