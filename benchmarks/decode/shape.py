"""What is decoded: sizes, a plan and a batch, with random weights and inputs of those sizes."""

from __future__ import annotations

import dataclasses
import importlib.resources
import math
import tomllib
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from grace.decode import BeamPlan
from grace.model.config import ModelConfig, config_from_table
from grace.model.decoder import Decoder


@dataclass(frozen=True)
class Shape:
    """Sizes of one case.

    Attributes:
        config: the model's; `num_context_tokens` is T.
        plan: widths.
        batch: B.
    """

    config: ModelConfig
    plan: BeamPlan
    batch: int

    @property
    def widths(self) -> tuple[int, ...]:
        """Beams that enter each step, and the SIDs that are kept."""
        return (*self.plan.widths, self.plan.num_sids)

    def decoder(self, seed: int, device: str) -> Decoder:
        """Return a decoder with random weights, as a new model has them, in float32."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            decoder = Decoder(self.config)
            std = 1 / math.sqrt(self.config.model_dim)
            for module in decoder.modules():
                if not isinstance(module, nn.Linear | nn.RMSNorm):
                    for parameter in module.parameters(recurse=False):
                        nn.init.normal_(parameter, std=std)
        return decoder.eval().to(device)

    def context(self, seed: int, device: str) -> Tensor:
        """Return random contexts, float32 `[B, T, model_dim]`."""
        draw = torch.Generator(device).manual_seed(seed)
        sizes = (self.batch, self.config.num_context_tokens, self.config.model_dim)
        return torch.randn(sizes, generator=draw, device=device)

    def changed(
        self, batch: int | None = None, plan: BeamPlan | None = None, **sizes: int
    ) -> Shape:
        """Return the shape with another batch, plan or sizes of the model."""
        config = dataclasses.replace(self.config, **sizes)
        return Shape(config, plan or self.plan, batch or self.batch)


def read_shape(plan: str) -> Shape:
    """Return GRACE's shape with one of its plans, `dynamic` or `fixed`; see `paper.toml`."""
    path = importlib.resources.files("grace.model") / "configs" / "paper.toml"
    content = tomllib.loads(path.read_text(encoding="utf-8"))
    config = config_from_table(ModelConfig, content["model"], "paper.toml: model")
    chosen = content["plans"][plan]
    return Shape(config, BeamPlan(tuple(chosen["widths"]), chosen["num_sids"]), content["batch"])


def small_shape(plan: str) -> Shape:
    """Return a tiny shape, to try the scripts on a CPU."""
    config = ModelConfig(
        num_levels=4, vocab_size=512, model_dim=32, num_heads=2, head_dim=16, ffn_dim=48,
        decoder_layers=2, num_context_tokens=5, num_recent_tokens=1,
    )  # fmt: skip
    first = 6 if plan == "dynamic" else 12
    return Shape(config, BeamPlan((1, first, 12, 12), 12), 3)
