"""A data set of few users that small models learn in seconds."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from grace.train.sequence import Recipe, SequenceConfig

NUM_ITEMS = 40
TIGER = {"d_model": 16, "d_kv": 8, "d_ff": 32, "num_heads": 2, "num_layers": 1,
         "num_decoder_layers": 1, "dropout_rate": 0.1}  # fmt: skip
SASREC = {"model_dim": 16, "num_layers": 1, "num_heads": 2, "ffn_dim": 32, "dropout": 0.1}
CAUSAL = SASREC | {"dropout": 0.1}
GRACE = {"model_dim": 16, "num_heads": 2, "head_dim": 8, "ffn_dim": 32, "num_context_tokens": 4,
         "num_recent_tokens": 2, "num_summary_tokens": 2, "dropout": 0.1}  # fmt: skip
SIZES = {"tiger": TIGER, "sasrec": SASREC, "grace": GRACE, "causal": CAUSAL, "popularity": {}}


def item_id(item: int) -> int:
    """Ids as in a raw file: neither dense nor from 0."""
    return 3 * item + 5


def walk(user: int, length: int) -> list[int]:
    """Items of a user: each follows from the one before."""
    items = [user % NUM_ITEMS]
    while len(items) < length:
        items.append((items[-1] * 7 + 3) % NUM_ITEMS)
    return items


def straight_walk(user: int, length: int) -> list[int]:
    """Items of a user that never come again."""
    return [(user + 7 * place) % NUM_ITEMS for place in range(length)]


def write_data(
    folder: Path, num_users: int = 60, test_item: int | None = None, walk: Callable = walk
) -> Path:
    """Write a prepared data set; `test_item` is what every test row holds out."""
    folder.mkdir(parents=True, exist_ok=True)
    walks = [[item_id(i) for i in walk(u, 4 + u % 9)] for u in range(num_users)]
    users = pa.array(range(100, 100 + num_users), pa.int64())
    lists = pa.list_(pa.int64())
    tables = {
        "items": {"ad_id": pa.array([item_id(i) for i in range(NUM_ITEMS)], pa.int64())},
        "train": {"user": users, "items": pa.array([w[:-2] for w in walks], lists)},
    }
    for name, last in (("valid", -2), ("test", -1)):
        targets = [w[last] for w in walks]
        if name == "test" and test_item is not None:
            targets = [item_id(test_item)] * num_users
        tables[name] = {
            "user": users,
            "history": pa.array([w[:last] for w in walks], lists),
            "target": pa.array(targets, pa.int64()),
        }
    for name, columns in tables.items():
        pq.write_table(pa.table(columns), folder / f"{name}.parquet")
    return folder


def item_sids(seed: int = 0, codes: int = 6) -> np.ndarray:
    """Return int32 `[NUM_ITEMS, 3]`; a few items share a SID."""
    return np.random.default_rng(seed).integers(0, codes, (NUM_ITEMS, 3)).astype(np.int32)


def write_sids(path: Path, sids: np.ndarray | None = None) -> Path:
    sids = item_sids() if sids is None else sids
    ids = pa.array([item_id(i) for i in range(len(sids))], pa.int64())
    column = pa.array(sids.tolist(), pa.list_(pa.int32()))
    pq.write_table(pa.table({"ad_id": ids, "sid": column}), path)
    return path


def recipe(kind: str, **settings) -> Recipe:
    defaults = {
        "steps": 12, "batch_size": 32, "history": 5, "buckets": 2, "valid_every": 4,
        "log_every": 2, "beam_width": 20, "learning_rate": 1e-2,
    }  # fmt: skip
    return Recipe(model=SIZES[kind], train=SequenceConfig(**(defaults | settings)))
