"""Which items a model recommends at all: coverage and popularity bias of its lists."""

from __future__ import annotations

import numpy as np

from grace.evaluate.ranking.lists import NONE


def breadth(ranked: np.ndarray, targets: np.ndarray, counts: np.ndarray) -> dict[str, float]:
    """Measure the first k places of all users together.

    Args:
        ranked: int64 `[U, k]`, -1 for none.
        targets: `[U]`, what the users took: the bias is to be compared with theirs.
        counts: `[N]`, training events of each item.

    Returns:
        `coverage`: share of all items that stand in some list. `gini`: of how often each item
        stands in a list, 0 for all alike, towards 1 for one item in all. `log_popularity_rank`:
        mean of ln(rank) of recommended items, rank 1 for the most popular (equal counts by item);
        small is biased. `target_log_popularity_rank`: the same of the targets.
    """
    num_items = len(counts)
    shown = np.bincount(ranked[ranked != NONE], minlength=num_items)
    rank = np.empty(num_items, np.int64)
    rank[np.argsort(-counts, kind="stable")] = np.arange(1, num_items + 1)
    log_rank = np.log(rank)
    return {
        "coverage": float((shown > 0).mean()),
        "gini": gini(shown),
        "log_popularity_rank": float(shown @ log_rank / max(1, shown.sum())),
        "target_log_popularity_rank": float(log_rank[targets].mean()) if len(targets) else 0.0,
    }


def gini(counts: np.ndarray) -> float:
    """Gini coefficient of counts `[N]`: half their mean absolute difference by their mean."""
    total = counts.sum()
    if total == 0:
        return 0.0
    n = len(counts)
    place = np.arange(1, n + 1)
    return float(2 * (place @ np.sort(counts)) / (n * total) - (n + 1) / n)
