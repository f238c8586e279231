"""Small T5s, their inputs, requests and folders."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from grace.model.t5 import T5, T5Config, TokenMap, save_hf

TOKENS = TokenMap.of((5, 5, 5), num_users=7)


def small_config(tokens: TokenMap = TOKENS, **sizes) -> T5Config:
    """Odd sizes; `num_heads * d_kv` is not `d_model`."""
    defaults = {
        "vocab_size": tokens.vocab_size + 3, "d_model": 20, "d_kv": 6, "d_ff": 28, "num_heads": 3,
        "num_layers": 3, "num_decoder_layers": 2, "relative_attention_num_buckets": 8,
        "relative_attention_max_distance": 20,
    }  # fmt: skip
    return T5Config(**(defaults | sizes))


def small_t5(tokens: TokenMap = TOKENS, seed: int = 0, max_items: int = 6, **sizes) -> T5:
    """Random weights, norms included, which a new model has at 1."""
    torch.manual_seed(seed)
    model = T5(small_config(tokens, **sizes), tokens, max_items).eval()
    for name, parameter in model.named_parameters():
        if name.endswith("norm.weight"):
            parameter.data.uniform_(0.5, 1.5)
    return model


def inputs(seed: int = 0, rows: int = 4, width: int = 25, tokens: TokenMap = TOKENS) -> tuple:
    """Random ids, masks of several lengths and decoder inputs."""
    draw = torch.Generator().manual_seed(seed)
    size = (rows, width)
    ids = torch.randint(1, tokens.vocab_size, size, generator=draw)
    lengths = torch.randint(1, width + 1, (rows, 1), generator=draw)
    decoder_input = torch.randint(1, tokens.vocab_size, (rows, tokens.num_levels), generator=draw)
    decoder_input[:, 0] = 0
    return ids, torch.arange(width) < lengths, decoder_input


def histories(number: int, num_ads: int = 60, seed: int = 0, most: int = 9) -> list[dict]:
    """Requests with histories of 0 to `most` known and unknown ads; some have a user."""
    draw = np.random.default_rng(seed)
    requests = []
    for i in range(number):
        history = draw.integers(0, num_ads + 3, draw.integers(0, most + 1)).tolist()
        features = {"history": history} | ({"user": i * 1000} if draw.random() < 0.7 else {})
        requests.append({"id": i, "features": features})
    return requests


def saved(model: T5, folder: Path) -> Path:
    """Write a model and return its folder."""
    save_hf(model, folder)
    return folder
