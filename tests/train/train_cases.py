"""A world of few users that a small model learns in a second, and ways to train on it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from model_cases import small_index

from grace.model import FeatureSpec
from grace.train import RunConfig, TrainConfig

NUM_ADS = 60
INDEX = small_index(NUM_ADS)
SPEC = FeatureSpec.from_dict(
    {"fields": [
        {"name": "group", "kind": "categorical"}, {"name": "age", "kind": "numeric"},
        {"name": "tags", "kind": "bag", "max_length": 2},
        {"name": "history", "kind": "sequence", "max_length": 5},
    ]}
)  # fmt: skip
SIZES = {
    "model_dim": 16, "num_heads": 2, "head_dim": 8, "ffn_dim": 16, "num_context_tokens": 4,
    "num_recent_tokens": 2, "num_summary_tokens": 2,
}  # fmt: skip


def walk(user: int, length: int) -> list[int]:
    """Ads of a user: each follows from the one before and the user's group."""
    ads = [user % NUM_ADS]
    while len(ads) < length:
        ads.append((ads[-1] * 7 + 1 + user % 2) % NUM_ADS)
    return ads


def features(user: int, length: int) -> dict:
    return {
        "group": "ab"[user % 2],
        "age": 20 + user % 50,
        "tags": ["t"] if user % 3 else [],
        "history": [
            {"ad_id": ad, "action": "buy", "at": i} for i, ad in enumerate(walk(user, length))
        ],
    }


def train_rows(num_users: int = 40, length: int = 9) -> list[dict]:
    return [{"features": features(user, length)} for user in range(num_users)]


def valid_rows(num_users: int = 40, length: int = 9) -> list[dict]:
    return [
        {"features": features(user, length), "target": walk(user, length + 1)[-1]}
        for user in range(num_users)
    ]


def run_config(model: dict | None = None, **settings) -> RunConfig:
    defaults = {"epochs": 3, "batch_size": 64, "micro_batch_size": 64, "cuts_per_row": 3,
                "targets_per_cut": 2, "beam_width": 8}  # fmt: skip
    return RunConfig(model=SIZES | (model or {}), train=TrainConfig(**(defaults | settings)))


def write_jsonl(path: Path, rows: list[dict]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def curve(history: list[dict]) -> list[tuple]:
    """What a run must repeat to the bit; how long it took is not part of it."""
    names = ("epoch", "train_loss", "valid_loss", "valid_recall", "learning_rate", "examples")
    return [tuple(record[name] for name in names) for record in history]


def weights(directory: Path) -> dict[str, np.ndarray]:
    from grace.model import load_model

    return {n: t.numpy() for n, t in load_model(directory).state_dict().items()}
