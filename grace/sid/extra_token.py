"""Make SIDs unique by a level of its own that numbers the items of a SID."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from grace.errors import SidError
from grace.sid.collisions import squared_errors


def append_token(
    vectors: np.ndarray, sids: np.ndarray, codebooks: Sequence[np.ndarray], codes: int
) -> np.ndarray:
    """Add a level that numbers the items of a SID, nearest first: TIGER's extra token.

    Args:
        vectors: `[N, D]` float32, what was quantised; equal distances go by row.
        sids: `[N, L]` int32.
        codebooks: L arrays `[K, D]`.
        codes: V.

    Returns:
        `[N, L + 1]` int32, rows distinct; the last code is 0 for an item alone on its SID.

    Raises:
        SidError: if more than V items share a SID.
    """
    return number_items(sids, squared_errors(vectors, sids, codebooks), codes)


def number_items(sids: np.ndarray, order_by: np.ndarray, codes: int) -> np.ndarray:
    """Append to each SID the item's number among the items of that SID, by ascending `order_by`."""
    _, sid, sharing = np.unique(sids, axis=0, return_inverse=True, return_counts=True)
    if sharing.max() > codes:
        raise SidError(
            f"extra-token: {sharing.max()} items share a SID, but a level has {codes} codes; "
            "raise --levels or --codes, or use --collisions cluster"
        )
    order = np.lexsort((order_by, sid))
    grouped = sid[order]
    number = np.empty(len(sids), np.int32)
    number[order] = np.arange(len(order)) - np.searchsorted(grouped, grouped)
    return np.column_stack([sids, number]).astype(np.int32)
