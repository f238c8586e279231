"""k-means with equal clusters: no code of a level has more than ⌈U / V⌉ of the U vectors.

Assignment with capacities is optimal transport: Sinkhorn's iteration (Cuturi, 2013) prices the
codes, so that crowded ones cost more, and a deferred acceptance turns the priced distances into a
hard assignment that keeps every capacity. Lloyd's iteration stands around it, as in constrained
k-means (Bradley, Bennett and Demiriz, 2000).
"""

from __future__ import annotations

import numpy as np
from scipy import sparse

from grace.errors import SidError
from grace.sid.quantize import distinct_rows, fit_kmeans_level, relative_distances

MAX_PAIRS = 2**27
"""Vectors times codes: 1 GiB of float64 distances, and a few times that while it works."""

_ITERATIONS = 15
_SINKHORN_ITERATIONS = 30
_SHARPNESS = 20.0  # how many times smaller the transport's temperature is than a typical regret


def fit_balanced_level(
    residuals: np.ndarray, counts: np.ndarray, codes: int, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Fit one level's codebook with clusters of equal size.

    Sizes count distinct residuals, not items: items with one vector must share a code.

    Args:
        residuals: `[U, D]` float32.
        counts: `[U]` int64, how many items each stands for; weights of the means.
        codes: V.
        seed: of the k-means that it starts from.

    Returns:
        Codebook `[K, D]` float32 and codes `[U]` int32; not always the nearest.

    Raises:
        SidError: if there are more distances than memory should hold.
    """
    distinct, inverse, _ = distinct_rows(residuals)
    if len(distinct) <= codes:
        return distinct, inverse.astype(np.int32)
    if len(distinct) * codes > MAX_PAIRS:
        raise SidError(
            f"balanced-kmeans holds the distances of all vectors to all codes: {len(distinct):,} "
            f"x {codes:,} is more than {MAX_PAIRS:,}; use kmeans or rq-vae"
        )
    weights = np.bincount(inverse, weights=counts)
    codebook, _ = fit_kmeans_level(distinct, weights, codes, seed)
    best = np.inf
    prices = np.ones(codes)
    for _ in range(_ITERATIONS):
        distances = relative_distances(distinct, codebook)
        assigned, prices = assign_evenly(distances, prices)
        error = float(weights @ distances[np.arange(len(distinct)), assigned])
        if error >= best:
            break
        best, kept = error, assigned
        codebook = _means(distinct, weights, assigned, codes)
    return _means(distinct, weights, kept, codes), kept[inverse]


def assign_evenly(
    distances: np.ndarray, prices: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Assign rows to columns, near ones, at most ⌈U / K⌉ rows to a column.

    Args:
        distances: `[U, K]` float64, comparable within a row.
        prices: `[K]`, Sinkhorn's column scaling to start from; ones by default.

    Returns:
        Columns `[U]` int32, and the scaling `[K]` for a next call with similar distances.
    """
    rows, columns = distances.shape
    regret = distances - distances.min(axis=1, keepdims=True)
    temperature = max(float(regret.mean()), 1e-300) / _SHARPNESS
    kernel = np.exp(np.maximum(-regret / temperature, -600))
    scaling = np.ones(columns) if prices is None else prices
    for _ in range(_SINKHORN_ITERATIONS):
        scaling = rows / columns / (kernel.T @ (1 / (kernel @ scaling)))
    priced = regret - temperature * np.log(scaling)
    return _accept(priced, -(-rows // columns)), scaling


def _accept(costs: np.ndarray, capacity: int) -> np.ndarray:
    """Deferred acceptance: rows ask for their cheapest open column, a full one keeps those that
    would lose most elsewhere; ties keep the lower row."""
    rows, columns = costs.shape
    assigned = np.full(rows, -1, np.int32)
    room = np.full(columns, capacity)
    waiting = np.arange(rows)
    costs = costs.copy()
    while len(waiting):
        asked = costs[waiting].argmin(axis=1)
        lowest = np.partition(costs[waiting], 1, axis=1)[:, :2] if columns > 1 else None
        loss = lowest[:, 1] - lowest[:, 0] if lowest is not None else np.zeros(len(waiting))
        order = np.lexsort((-loss, asked))  # stable: equal losses stay in the order of the rows
        column = asked[order]
        place = np.arange(len(order)) - np.searchsorted(column, column)
        accepted = place < room[column]
        assigned[waiting[order[accepted]]] = column[accepted]
        room -= np.bincount(column[accepted], minlength=columns)
        costs[:, room == 0] = np.inf
        waiting = np.sort(waiting[order[~accepted]])
    return assigned


def _means(
    vectors: np.ndarray, weights: np.ndarray, assigned: np.ndarray, codes: int
) -> np.ndarray:
    shape = (codes, len(vectors))
    members = sparse.csr_matrix((weights, (assigned, np.arange(len(vectors)))), shape)
    totals = np.bincount(assigned, weights=weights, minlength=codes)
    sums = members @ vectors.astype(np.float64)
    return (sums / np.maximum(totals, 1)[:, None]).astype(np.float32)
