"""How a sequence model is trained: the `[train]` table of a recipe."""

from __future__ import annotations

import dataclasses
import math
import os
import sys
from typing import Any

from grace.catalog.values import describe
from grace.errors import ConfigError
from grace.model.config import check_types, config_from_table
from grace.train.config import MAX_COUNT, read_tables

CHOICES = {
    "optimiser": ("adamw", "muon"),
    "schedule": ("cosine", "inverse-sqrt", "constant"),
    "precision": ("auto", "float32", "bfloat16"),
    "mode": ("auto", "eager", "compile", "graph", "compile+graph"),
    "select": ("recall@10", "ndcg@10"),
}
COUNTS = ("steps", "batch_size", "micro_batch_size", "history", "buckets", "valid_every",
          "patience", "log_every", "beam_width", "rank_batch")  # fmt: skip


@dataclasses.dataclass(frozen=True, kw_only=True)
class SequenceConfig:
    """Settings of a run.

    Attributes:
        steps: optimiser steps, at most.
        batch_size: examples of a step, in each process.
        micro_batch_size: examples of one forward pass, at most; gradients add up to the same step.
        history: items that the model reads, at most; the newest.
        buckets: lengths to which histories are padded, at most, and no more than a step has
            examples. A step holds rows of all of them, in the proportions of the data, so that its
            shapes never change.
        drop_history: share of a history left out at random while training, never the newest item.
        optimiser: `adamw`, or `muon`: Muon for weight matrices, AdamW for the rest.
        learning_rate: peak of AdamW.
        muon_learning_rate: peak of Muon, on AdamW's scale (updates have AdamW's usual size).
        schedule: after warm-up: `cosine` to zero, `inverse-sqrt` or `constant`.
        warmup_steps: in which the learning rate rises along a line.
        weight_decay: of weight matrices, per step times the learning rate.
        max_gradient_norm: larger gradients are scaled down to it.
        label_smoothing: share of a target's probability spread over its level's codes (those that
            its prefix leads to, in the causal model) or over all items.
        average_decay: of the moving average of weights, which is what is validated and kept; 0 for
            the weights themselves.
        precision: of the forward pass: `bfloat16` is autocast, for a T5 bfloat16 throughout;
            weights and gradients stay float32. `auto` takes it on a GPU.
        mode: how a step runs. `compile` is torch.compile; `graph` one CUDA graph a step, which one
            process on a GPU can have and there `auto` takes; elsewhere it is `eager`.
        exclude_history: whether items of a user's history are left out of rankings: right where
            nobody takes an item twice, which the training part must show.
        valid_every: steps between validations.
        patience: validations without a better score after which training stops.
        select: the validation metric that picks the best.
        beam_width: SIDs that a search keeps.
        rank_batch: users ranked at once.
        valid_users: users of a validation while training, drawn once; 0 for all.
        log_every: steps between rows of the training loss, and checks that it is finite.
        seed: of weights, order and dropout.
    """

    steps: int = 10_000
    batch_size: int = 256
    micro_batch_size: int = 4096
    history: int = 20
    buckets: int = 3
    drop_history: float = 0.0
    optimiser: str = "adamw"
    learning_rate: float = 1e-3
    muon_learning_rate: float = 2e-3
    schedule: str = "cosine"
    warmup_steps: int = 0
    weight_decay: float = 0.0
    max_gradient_norm: float = 1.0
    label_smoothing: float = 0.0
    average_decay: float = 0.0
    precision: str = "auto"
    mode: str = "auto"
    valid_every: int = 500
    patience: int = 10
    select: str = "ndcg@10"
    beam_width: int = 50
    exclude_history: bool = False
    rank_batch: int = 512
    valid_users: int = 0
    log_every: int = 100
    seed: int = 0

    def __post_init__(self) -> None:
        check_types(self)
        for name, choices in CHOICES.items():
            if getattr(self, name) not in choices:
                raise ConfigError(
                    f"{name} must be one of {', '.join(choices)}, got {getattr(self, name)!r}"
                )
        for name in (*COUNTS, "warmup_steps", "valid_users"):
            value, least = getattr(self, name), int(name in COUNTS)
            if not least <= value <= MAX_COUNT:
                raise ConfigError(
                    f"{name} must be from {least} to {MAX_COUNT}, got {describe(value)}"
                )
        for name in ("learning_rate", "muon_learning_rate", "max_gradient_norm"):
            value = getattr(self, name)
            if not 0 < value <= sys.float_info.max:
                raise ConfigError(f"{name} must be above 0 and finite, got {describe(value)}")
        for name in ("drop_history", "label_smoothing", "average_decay", "weight_decay"):
            value = getattr(self, name)
            if not 0 <= value < 1:
                raise ConfigError(f"{name} must be at least 0 and below 1, got {describe(value)}")
        if not 0 <= self.seed < 2**63:
            raise ConfigError(f"seed must be at least 0 and below 2^63, got {describe(self.seed)}")

    def rate_share(self, step: int) -> float:
        """Return the learning rate of a step, counted from 0, as a share of its peak."""
        if step < self.warmup_steps:
            return (step + 1) / self.warmup_steps
        if self.schedule == "cosine":
            done = (step - self.warmup_steps) / max(1, self.steps - self.warmup_steps)
            return 0.5 * (1 + math.cos(math.pi * done))
        if self.schedule == "inverse-sqrt":
            return math.sqrt(max(1, self.warmup_steps) / (step + 1))
        return 1.0

    def average_share(self, step: int) -> float:
        """Return how much of the weights the average takes in at a step; at first nearly all."""
        return 1 - min(self.average_decay, (1 + step) / (10 + step)) if self.average_decay else 1.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Recipe:
    """A recipe file: `[model]`, checked where the kind of model is known, and `[train]`."""

    model: dict[str, Any] = dataclasses.field(default_factory=dict)
    train: SequenceConfig = SequenceConfig()

    @classmethod
    def load(cls, path: str | os.PathLike) -> Recipe:
        """Read a TOML file.

        Raises:
            ConfigError: if it is missing, not TOML, or holds an unknown key or a wrong value.
        """
        tables = read_tables(path)
        settings = config_from_table(SequenceConfig, tables.get("train", {}), f"{path}: [train]")
        return cls(model=tables.get("model", {}), train=settings)
