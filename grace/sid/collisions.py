"""Make SIDs unique: items beyond the first on a SID move to the nearest SID that is free."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from grace.errors import SidError
from grace.sid.quantize import relative_distances, subtract_code


def resolve_collisions(
    vectors: np.ndarray, sids: np.ndarray, codebooks: Sequence[np.ndarray], codes: int
) -> np.ndarray:
    """Move as few items as possible, each as near to its vector as possible.

    On every SID the item nearest to it stays (ties: the first row). The others take, in order of
    their distance, the nearest free code at the last level. Where all V are taken, the item goes up
    one level and takes the nearest code there that has room below it, and so on to the root: every
    item finds a place, and a prefix changes only where it is full. A code without a centroid (the
    codebook is smaller than V) comes after all others, lowest first.

    Args:
        vectors: `[N, D]` float32, what was quantised.
        sids: `[N, L]` int32, the codes of `vectors`.
        codebooks: L arrays `[K, D]`, K at most V.
        codes: V.

    Returns:
        `[N, L]` int32, rows distinct.

    Raises:
        SidError: if there are more items than SIDs.
    """
    check_room(*sids.shape, codes)
    order = np.argsort(squared_errors(vectors, sids, codebooks), kind="stable")
    seen = set()
    displaced = []
    for item in order.tolist():
        sid = tuple(sids[item].tolist())
        if sid in seen:
            displaced.append(item)
        seen.add(sid)
    return place_displaced(vectors, sids, sids, displaced, codebooks, codes)


def check_room(num_items: int, levels: int, codes: int) -> None:
    """Raise SidError if there are more items than SIDs."""
    if num_items > codes**levels:
        raise SidError(
            f"collisions cannot be resolved: {num_items} items, but {levels} levels of {codes} "
            f"codes make only {codes**levels} SIDs; raise --levels or --codes, or leave items "
            "clustered"
        )


def place_displaced(
    vectors: np.ndarray,
    placed: np.ndarray,
    sids: np.ndarray,
    displaced: list[int],
    codebooks: Sequence[np.ndarray],
    codes: int,
) -> np.ndarray:
    """Give displaced items, in their order, the nearest free SID as far down as there is room.

    Args:
        vectors: `[N, D]` float32, what was quantised.
        placed: `[N, L]` int32, distinct among the items that are not displaced.
        sids: `[N, L]` int32, the codes of `vectors`: where a displaced item comes from.
        displaced: rows.
        codebooks: L arrays `[K, D]`.
        codes: V.

    Returns:
        `[N, L]` int32, rows distinct.
    """
    levels = sids.shape[1]
    resolved = placed.copy()
    taken = _Taken(codes, levels)
    for sid in np.delete(placed, np.array(displaced, np.int64), axis=0).tolist():
        taken.add(tuple(sid))
    # Prefix by prefix, deepest first: an item from elsewhere must not take the place of one that
    # can still stay under its own prefix.
    for depth in reversed(range(levels)):
        waiting = []
        for item in displaced:
            prefix = tuple(sids[item, :depth].tolist())
            if taken.is_full(prefix):
                waiting.append(item)
                continue
            sid = _nearest_free(vectors[item], prefix, codebooks, taken)
            taken.add(sid)
            resolved[item] = sid
        displaced = waiting
    assert not displaced
    return resolved


class _Taken:
    """How many SIDs are taken below each prefix."""

    def __init__(self, codes: int, levels: int):
        self.codes = codes
        self.levels = levels
        self.below: dict[tuple[int, ...], int] = {}

    def add(self, sid: tuple[int, ...]) -> None:
        for depth in range(self.levels + 1):
            self.below[sid[:depth]] = self.count(sid[:depth]) + 1

    def count(self, prefix: tuple[int, ...]) -> int:
        return self.below.get(prefix, 0)

    def is_full(self, prefix: tuple[int, ...]) -> bool:
        return self.count(prefix) == self.codes ** (self.levels - len(prefix))


def _nearest_free(
    vector: np.ndarray,
    prefix: tuple[int, ...],
    codebooks: Sequence[np.ndarray],
    taken: _Taken,
) -> tuple[int, ...]:
    """Walk down from a prefix that is not full, at each level to the nearest code with room."""
    residual = vector[None]
    for level, code in enumerate(prefix):
        residual = _without(residual, codebooks[level], code)
    for codebook in codebooks[len(prefix) :]:
        nearest = np.argsort(relative_distances(residual, codebook)[0], kind="stable").tolist()
        candidates = (*nearest, *range(len(codebook), taken.codes))
        code = next(code for code in candidates if not taken.is_full((*prefix, code)))
        residual = _without(residual, codebook, code)
        prefix = (*prefix, code)
    return prefix


def _without(residual: np.ndarray, codebook: np.ndarray, code: int) -> np.ndarray:
    return subtract_code(residual, codebook[code][None]) if code < len(codebook) else residual


def squared_errors(
    vectors: np.ndarray, sids: np.ndarray, codebooks: Sequence[np.ndarray]
) -> np.ndarray:
    """Return `[N]` float64: the square of what all codes together leave of each vector."""
    residual = vectors
    for level, codebook in enumerate(codebooks):
        residual = subtract_code(residual, codebook[sids[:, level]])
    return (residual.astype(np.float64) ** 2).sum(axis=1)
