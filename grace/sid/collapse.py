"""When SIDs are too bad to be used: a tokenizer that tells no items apart must not go unnoticed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from grace.errors import SidError
from grace.sid.report import LevelReport, resolved_share

MIN_LEVEL_RESOLVED = 0.1
"""A level that tells less than this share of what it could has collapsed."""

MIN_AMBIGUITY = 2
"""Levels that begin with fewer vectors to a prefix have too little left to tell to be judged."""

MIN_RESOLVED = 0.5
"""All levels together must tell this share of what they could."""

MAX_SID_SHARE = 0.5
"""A SID with more than half of all items tells nothing about most of the catalogue."""

MIN_ITEMS_TO_JUDGE = 10
"""Shares of fewer items than this are noise; only "all are the same" is refused there."""


def refuse_collapse(
    levels: Sequence[LevelReport], counts: np.ndarray, quantised: np.ndarray, codes: int
) -> None:
    """Raise if the codes do not tell the items apart; see docs/sids.md, "Collapse".

    Args:
        levels: from `measure_levels`.
        counts: `[U]` int64, items with each distinct vector.
        quantised: `[U, L]` int32, the nearest codes of the distinct vectors.
        codes: V.

    Raises:
        SidError: naming what collapsed, the figures, and what to do.
    """
    items = int(counts.sum())
    if items > 1 and len(counts) == 1:
        raise SidError(
            f"collapsed: all {items} items have the same vector, so they would share one SID; "
            "check that the text columns or embeddings differ between items"
        )
    if items < MIN_ITEMS_TO_JUDGE:
        return
    ambiguity = len(counts)
    for level in levels:
        if ambiguity >= MIN_AMBIGUITY and level.resolved < MIN_LEVEL_RESOLVED:
            raise SidError(
                f"level {level.level} collapsed: it tells apart {level.resolved:.1%} of what it "
                f"could, under {MIN_LEVEL_RESOLVED:.0%} (perplexity of its {level.codes} codes "
                f"{level.perplexity:.1f}); a few vectors far larger than the rest do this: scale "
                "the vectors to length 1, or use more codes per level"
            )
        ambiguity = level.ambiguity
    resolved = resolved_share(levels, len(counts), codes)
    if resolved < MIN_RESOLVED:
        raise SidError(
            f"collapsed: the SIDs tell apart {resolved:.1%} of what {len(levels)} levels of "
            f"{codes} codes could on {len(counts)} distinct vectors, under {MIN_RESOLVED:.0%}; "
            "use more codes per level, or vectors that are spread more evenly"
        )
    _, sid = np.unique(quantised, axis=0, return_inverse=True)
    largest = int(np.bincount(sid, weights=counts).max())
    if largest > MAX_SID_SHARE * items:
        raise SidError(
            f"collapsed: {largest} of {items} items fall on one SID, more than "
            f"{MAX_SID_SHARE:.0%}; {len(counts)} vectors are distinct, so give more items "
            "a text, a behaviour or an embedding of their own, or use more levels or codes"
        )
