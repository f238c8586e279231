"""The sizes of the encoder-decoder, and how a table of settings becomes a checked dataclass."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Mapping
from typing import Any, TypeVar

from grace.catalog.values import describe
from grace.errors import ConfigError

LARGEST_SIZES = {
    "num_levels": 1000, "vocab_size": 2**31 - 1, "encoder_layers": 1000, "decoder_layers": 1000,
}  # fmt: skip
LARGEST_SIZE = 65_536
"""Of every other size. Past these a size is a slip, and would take all memory before it failed."""

Config = TypeVar("Config")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Sizes of the encoder-decoder; the defaults suit some 10^5 events and a CPU.

    Attributes:
        num_levels: L, tokens in a SID. The index's.
        vocab_size: V, tokens per level. At least the index's largest token + 1.
        model_dim: width of every hidden vector.
        num_heads: H, attention heads of encoder and decoder.
        head_dim: D, width of one head; `num_heads * head_dim` need not be `model_dim`.
        ffn_dim: hidden width of each SwiGLU block.
        encoder_layers: encoder blocks, each with one exchange of summaries in both directions.
        decoder_layers: decoder blocks.
        num_context_tokens: T, tokens that the encoder hands to the decoder, for every request.
        num_recent_tokens: how many of the T queries start from the newest events; the others are
            learned.
        num_summary_tokens: tokens in which the sequence and the features tell each other what they
            hold, once a layer and direction.
        dropout: share of activations dropped while training; never at inference.
    """

    num_levels: int
    vocab_size: int
    model_dim: int = 64
    num_heads: int = 2
    head_dim: int = 32
    ffn_dim: int = 128
    encoder_layers: int = 1
    decoder_layers: int = 1
    num_context_tokens: int = 16
    num_recent_tokens: int = 4
    num_summary_tokens: int = 4
    dropout: float = 0.0

    def __post_init__(self) -> None:
        check_types(self)
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            smallest = 0 if field.name == "num_recent_tokens" else 1
            largest = LARGEST_SIZES.get(field.name, LARGEST_SIZE)
            if field.name != "dropout" and value < smallest:
                raise ConfigError(
                    f"{field.name} must be at least {smallest}, got {describe(value)}"
                )
            if field.name != "dropout" and value > largest:
                raise ConfigError(f"{field.name} must be at most {largest}, got {describe(value)}")
        if not 0 <= self.dropout < 1:
            raise ConfigError(
                f"dropout must be at least 0 and below 1, got {describe(self.dropout)}"
            )
        if self.num_recent_tokens > self.num_context_tokens:
            raise ConfigError(
                f"num_recent_tokens must be at most num_context_tokens "
                f"({self.num_context_tokens}), got {self.num_recent_tokens}"
            )


def config_from_table(config: type[Config], table: Mapping[str, Any], where: str) -> Config:
    """Make a configuration dataclass from a table read from TOML or JSON.

    Raises:
        ConfigError: for a key that `config` does not have, a missing one, or a value of a wrong
            type or size; the message begins with `where`.
    """
    fields = {field.name: field for field in dataclasses.fields(config)}
    for key in table:
        if key not in fields:
            raise ConfigError(f"{where}: unknown key {key!r}; known keys: {', '.join(fields)}")
    for name, field in fields.items():
        if field.default is dataclasses.MISSING and name not in table:
            raise ConfigError(f"{where}: the key {name!r} is missing")
    try:
        return config(**table)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None


def check_types(config: Any) -> None:
    """Refuse a dataclass whose int, float, str or bool fields hold something else.

    An int may stand for a float; a bool never stands for a number.

    Raises:
        ConfigError: naming the field, its type and the value that came.
    """
    hints = typing.get_type_hints(type(config))
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        expected = hints[field.name]
        accepted = (int, float) if expected is float else (expected,)
        if type(value) not in accepted:
            raise ConfigError(f"{field.name} must be a {expected.__name__}, got {describe(value)}")
