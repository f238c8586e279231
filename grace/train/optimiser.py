"""AdamW, and its learning rate by step."""

from __future__ import annotations

import math

import torch
from torch import nn

from grace.train.config import TrainConfig

BETAS = (0.9, 0.98)
FINAL_SHARE = 0.05
"""Of the peak learning rate, where the cosine ends."""


def make_optimiser(model: nn.Module, config: TrainConfig) -> torch.optim.AdamW:
    """Return AdamW that decays the weight matrices of linear layers and nothing else."""
    decayed, others = [], []
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            is_matrix = isinstance(module, nn.Linear) and name == "weight"
            (decayed if is_matrix else others).append(parameter)
    groups = [
        {"params": decayed, "weight_decay": config.weight_decay},
        {"params": others, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=config.learning_rate, betas=BETAS, fused=True)


def learning_rate(config: TrainConfig, step: int, num_steps: int) -> float:
    """Return the learning rate of a step, counted from 0: a line up, then a cosine down."""
    num_warmup = math.ceil(config.warmup_share * num_steps)
    if step < num_warmup:
        return config.learning_rate * (step + 1) / num_warmup
    progress = (step - num_warmup) / max(1, num_steps - num_warmup)
    cosine = 0.5 * (1 + math.cos(math.pi * progress))
    return config.learning_rate * (FINAL_SHARE + (1 - FINAL_SHARE) * cosine)
