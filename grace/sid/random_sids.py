"""Random SIDs: the control that says how much of a result the tokenizer is worth."""

from __future__ import annotations

import numpy as np

from grace.errors import SidError

_MAX_LISTED = 2**24  # up to so many SIDs a permutation of all of them is drawn


def random_sids(num_items: int, levels: int, codes: int, seed: int) -> np.ndarray:
    """Draw distinct SIDs, uniformly.

    Args:
        num_items: N.
        levels: L.
        codes: V.
        seed: of the draw.

    Returns:
        `[N, L]` int32, rows distinct.

    Raises:
        SidError: if there are more items than SIDs.
    """
    space = codes**levels
    if num_items > space:
        raise SidError(
            f"random SIDs are distinct: {num_items} items, but {levels} levels of {codes} codes "
            f"make only {space} SIDs; raise --levels or --codes"
        )
    rng = np.random.default_rng(seed)
    if space <= _MAX_LISTED:
        number = rng.permutation(space)[:num_items]
        digits = [number // codes**place % codes for place in reversed(range(levels))]
        return np.column_stack(digits).astype(np.int32)
    sids = rng.integers(0, codes, (num_items, levels), dtype=np.int32)
    while len(repeated := _repeated(sids)):
        sids[repeated] = rng.integers(0, codes, (len(repeated), levels), dtype=np.int32)
    return sids


def _repeated(sids: np.ndarray) -> np.ndarray:
    """Return the rows that equal an earlier one."""
    _, first = np.unique(sids, axis=0, return_index=True)
    return np.setdiff1d(np.arange(len(sids)), first)
