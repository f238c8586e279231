"""Why no ad below a prefix may be seen: which rules refuse how many of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from grace.index import Index
from grace.index.rules import CompiledTargeting

SAMPLE = 1000
"""Ads of a subtree that are read, evenly spread over it."""


@dataclass(frozen=True)
class Refusals:
    """What refuses the ads below one node.

    Attributes:
        num_ads: ads below.
        checked: of these, read one by one: all, or `SAMPLE`.
        by: reasons with the number of checked ads that they refuse, the largest first. An ad may
            have several. Empty where an ad was resumed since the search.
    """

    num_ads: int
    checked: int
    by: dict[str, int]

    @property
    def rule(self) -> str:
        """The reason that refuses most; `by` must not be empty."""
        return next(iter(self.by))

    @staticmethod
    def of(
        index: Index, nodes: Sequence[int], targeting: CompiledTargeting, sample: int = SAMPLE
    ) -> list[Refusals]:
        """Read the rules of the ads below some nodes, in one go.

        Args:
            nodes: trie nodes of any levels.
            targeting: the request's.
            sample: the most ads of a node to read.
        """
        ranges = [ads_below(index, node) for node in nodes]
        positions = [spread(first, last, sample) for first, last in ranges]
        bits = index.explain(np.concatenate([np.empty(0, np.int64), *positions]), targeting)
        pieces = np.split(bits, np.cumsum([len(p) for p in positions])[:-1]) if nodes else []
        return [
            Refusals(last - first, len(piece), _count(index.refusal_reasons, piece))
            for (first, last), piece in zip(ranges, pieces, strict=True)
        ]


def ads_below(index: Index, node: int) -> tuple[int, int]:
    """Return the first position and the one past the last of the ads below a trie node."""
    trie = index.trie
    first, last = node, node + 1
    while first < trie.first_leaf:  # a node's children are neighbours, so are those of neighbours
        first, last = int(trie.child_offsets[first]) + 1, int(trie.child_offsets[last]) + 1
    sids = first - trie.first_leaf, last - trie.first_leaf
    return int(index.data.sid_ad_offsets[sids[0]]), int(index.data.sid_ad_offsets[sids[1]])


def spread(first: int, last: int, most: int) -> np.ndarray:
    """Return int64, all positions from `first` to before `last`, or `most` evenly spread ones."""
    if last - first <= most:
        return np.arange(first, last)
    return first + np.arange(most) * (last - first) // most


def _count(reasons: Sequence[str], bits: np.ndarray) -> dict[str, int]:
    counts = {
        reason: int((bits >> np.uint64(i) & np.uint64(1)).sum()) for i, reason in enumerate(reasons)
    }
    return dict(sorted(((r, n) for r, n in counts.items() if n), key=lambda item: -item[1]))
