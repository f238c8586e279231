"""Make SIDs unique by the optimal assignment of colliding items to free codes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.optimize import linear_sum_assignment

from grace.sid.collisions import check_room, place_displaced, squared_errors
from grace.sid.quantize import relative_distances, subtract_code


def reassign_collisions(
    vectors: np.ndarray, sids: np.ndarray, codebooks: Sequence[np.ndarray], codes: int
) -> np.ndarray:
    """Give colliding items the last codes that bring all of them, together, nearest.

    Prefix by prefix (all codes but the last): the items that share a SID are assigned anew to the
    last codes that no other item of the prefix has, with the least sum of squared distances
    between residual and code (`scipy.optimize.linear_sum_assignment`). Items that share with
    nobody stay. A code without a centroid subtracts nothing, so it costs the residual's own
    square. Where a prefix has more items than V, those that the optimum leaves out move as
    `resolve_collisions` moves them: to the nearest free SID one level up, and so on.

    Args:
        vectors: `[N, D]` float32, what was quantised.
        sids: `[N, L]` int32, their codes.
        codebooks: L arrays `[K, D]`, K at most V.
        codes: V.

    Returns:
        `[N, L]` int32, rows distinct.

    Raises:
        SidError: if there are more items than SIDs.
    """
    check_room(len(sids), sids.shape[1], codes)
    residuals = vectors
    for level, codebook in enumerate(codebooks[:-1]):
        residuals = subtract_code(residuals, codebook[sids[:, level]])
    _, prefix = np.unique(sids[:, :-1], axis=0, return_inverse=True)
    _, sid, sharing = np.unique(sids, axis=0, return_inverse=True, return_counts=True)
    collides = sharing[sid] > 1
    by_prefix = np.argsort(prefix, kind="stable")
    bounds = np.flatnonzero(np.diff(prefix[by_prefix])) + 1
    resolved = sids.copy()
    left_out: list[int] = []
    for items in np.split(by_prefix, bounds):
        moving = items[collides[items]]
        if not len(moving):
            continue
        free = np.setdiff1d(np.arange(codes), sids[items[~collides[items]], -1])
        rows, columns = linear_sum_assignment(_costs(residuals[moving], codebooks[-1], free))
        resolved[moving[rows], -1] = free[columns]
        left_out += np.setdiff1d(moving, moving[rows]).tolist()
    order = np.argsort(squared_errors(vectors, sids, codebooks), kind="stable")
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    left_out.sort(key=rank.__getitem__)
    return place_displaced(vectors, resolved, sids, left_out, codebooks, codes)


def _costs(residuals: np.ndarray, codebook: np.ndarray, free: np.ndarray) -> np.ndarray:
    """Squared distances `[M, F]` float64, less each residual's own square."""
    distances = np.zeros((len(residuals), len(free)))
    with_centroid = free < len(codebook)
    distances[:, with_centroid] = relative_distances(residuals, codebook[free[with_centroid]])
    return distances
