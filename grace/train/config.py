"""How a model is trained: the `[model]` and `[train]` tables of a TOML file."""

from __future__ import annotations

import dataclasses
import os
import sys
import tomllib
from pathlib import Path
from typing import Any

from grace.catalog.values import describe
from grace.errors import ConfigError
from grace.model.config import ModelConfig, check_types, config_from_table

MAX_COUNT = 10**9
MAX_TARGETS_PER_CUT = 1000
"""Every example has room for as many targets, filled or not."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """Settings of a training run; the defaults suit some 10^5 events and a CPU.

    Attributes:
        epochs: passes over the training rows, at most.
        batch_size: examples of one optimiser step.
        micro_batch_size: examples of one forward pass. Their gradients add up to the same step,
            whatever it is.
        cuts_per_row: in how many places a row without a target is cut each epoch.
        targets_per_cut: how many events after a cut must be predicted from the history before it,
            all alike. They cost one encoding.
        learning_rate: the peak, after warm-up.
        warmup_share: share of all steps in which the learning rate rises to its peak; then it falls
            along a cosine.
        weight_decay: of weight matrices; norms, biases, embeddings and queries have none.
        max_gradient_norm: larger gradients are scaled down to this norm.
        hide_share: share of profile values and actions that training hides, half of them as unknown
            and half as missing, so that those embedding rows are trained too.
        patience: epochs without a smaller validation loss after which training stops.
        recall_at: k of the validation recall.
        beam_width: SIDs of the beam search that measures it.
        seed: of weights, order, cuts, hiding and dropout.
    """

    epochs: int = 10
    batch_size: int = 128
    micro_batch_size: int = 128
    cuts_per_row: int = 8
    targets_per_cut: int = 4
    learning_rate: float = 4e-3
    warmup_share: float = 0.05
    weight_decay: float = 0.1
    max_gradient_norm: float = 1.0
    hide_share: float = 0.02
    patience: int = 3
    recall_at: int = 10
    beam_width: int = 64
    seed: int = 0

    def __post_init__(self) -> None:
        check_types(self)
        for name in ("epochs", "batch_size", "micro_batch_size", "cuts_per_row", "targets_per_cut",
                     "patience", "recall_at", "beam_width"):  # fmt: skip
            value, largest = getattr(self, name), MAX_COUNT
            if name == "targets_per_cut":
                largest = MAX_TARGETS_PER_CUT
            if value < 1:
                raise ConfigError(f"{name} must be at least 1, got {describe(value)}")
            if value > largest:
                raise ConfigError(f"{name} must be at most {largest}, got {describe(value)}")
        for name in ("learning_rate", "max_gradient_norm"):
            value = getattr(self, name)
            if not 0 < value <= sys.float_info.max:
                raise ConfigError(f"{name} must be above 0 and finite, got {describe(value)}")
        for name in ("warmup_share", "hide_share"):
            value = getattr(self, name)
            if not 0 <= value < 1:
                raise ConfigError(f"{name} must be at least 0 and below 1, got {describe(value)}")
        for name in ("weight_decay", "seed"):
            value = getattr(self, name)
            if not 0 <= value < 2**63:
                raise ConfigError(
                    f"{name} must be at least 0 and below 2^63, got {describe(value)}"
                )


def read_tables(path: str | os.PathLike) -> dict[str, dict[str, Any]]:
    """Read a TOML file of the tables `[model]` and `[train]`, either of which may be left out.

    Raises:
        ConfigError: if it is missing, not TOML, or holds anything else.
    """
    try:
        tables = tomllib.loads(Path(path).read_text(encoding="utf-8-sig"))
    except (OSError, ValueError, RecursionError) as error:  # the latter two of tomllib
        raise ConfigError(f"{path}: {' '.join(str(error).split())}") from None
    for name, table in tables.items():
        if name not in ("model", "train") or not isinstance(table, dict):
            raise ConfigError(f"{path}: expected the tables [model] and [train], got {name!r}")
    return tables


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunConfig:
    """A configuration file.

    Attributes:
        model: the `[model]` table: fields of `ModelConfig` that differ from their defaults.
        train: the `[train]` table.
    """

    model: dict[str, Any] = dataclasses.field(default_factory=dict)
    train: TrainConfig = TrainConfig()

    @classmethod
    def load(cls, path: str | os.PathLike) -> RunConfig:
        """Read a TOML file.

        Raises:
            ConfigError: if it is missing, not TOML, or holds an unknown key or a wrong value.
        """
        tables = read_tables(path)
        run = cls(
            model=tables.get("model", {}),
            train=config_from_table(TrainConfig, tables.get("train", {}), f"{path}: [train]"),
        )
        sizes = {"num_levels": 1, "vocab_size": 1} | run.model
        config_from_table(ModelConfig, sizes, f"{path}: [model]")  # found now, not at the first row
        return run

    def model_config(self, num_levels: int, vocab_size: int) -> ModelConfig:
        """Return the model's sizes for an index.

        Args:
            num_levels: L of the index.
            vocab_size: the index's; `[model]` may ask for a larger V, as room for later catalogues.

        Raises:
            ConfigError: if `[model]` has an unknown key or sizes that do not fit the index.
        """
        sizes = {"num_levels": num_levels, "vocab_size": vocab_size} | self.model
        config = config_from_table(ModelConfig, sizes, "[model]")
        if config.num_levels != num_levels:
            raise ConfigError(
                f"[model]: num_levels is the index's, {num_levels}, got {config.num_levels}"
            )
        if config.vocab_size < vocab_size:
            raise ConfigError(
                f"[model]: vocab_size must be at least {vocab_size} (the index's largest token is "
                f"{vocab_size - 1}), got {config.vocab_size}"
            )
        return config
