"""Metrics of one held-out item a user, each a number from 0 to 1 per user."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from grace.evaluate.metrics import ndcg, recall

KS = (1, 5, 10, 20)


def per_user(places: np.ndarray, ks: Sequence[int] = KS) -> dict[str, np.ndarray]:
    """Every metric of every user, float64 `[U]` by name.

    With one relevant item, recall@k is also the hit rate, and the ideal gain of NDCG is 1.

    Args:
        places: int `[U]`, 1 for the first place, 0 where the item is not in the list.
        ks: ascending; `mrr@k` is taken at the last alone.
    """
    values = {}
    for k in ks:
        values[f"recall@{k}"] = recall(places, k).astype(np.float64)
    for k in ks:
        values[f"ndcg@{k}"] = ndcg(places, k)
    values[f"mrr@{ks[-1]}"] = np.where(recall(places, ks[-1]), 1 / np.maximum(places, 1), 0.0)
    return values
