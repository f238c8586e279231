"""Small catalogues and vectors for the tests of SIDs."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

WORDS = (
    "red",
    "green",
    "blue",
    "round",
    "square",
    "small",
    "large",
    "soft",
    "hard",
    "warm",
    "cold",
)


def item_rows(count: int, seed: int = 0) -> list[dict]:
    """Ads with titles that share words, rules and a free column; ids are not in order."""
    rng = np.random.default_rng(seed)
    ids = rng.permutation(count)
    return [
        {
            "ad_id": f"ad{number}",
            "title": " ".join(rng.choice(WORDS, 4)),
            "description": f"number {number % 7}",
            "rules": {"age": {"min": 18}} if number % 2 else None,
            "price": number / 4,
        }
        for number in ids.tolist()
    ]


def write_jsonl(path: Path, rows: list[dict]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def gaussian(count: int, dimensions: int = 8, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((count, dimensions)).astype(np.float32)
