"""The end of the way: SIDs to ads, each by its own rules, as arrays; no Python object per ad."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from grace.decode import Beams
from grace.errors import RequestError
from grace.index import Index
from grace.retrieve.request import Request


@dataclass(frozen=True)
class Found:
    """What was found for one request: n ads out of k SIDs.

    Attributes:
        positions: int64 `[n]`, ads by (score descending, SID, ad id), cut at `top_k`.
        sids: int64 `[n, L]`, the SID of each ad.
        scores: float32 `[n]`, log-probability of each ad's SID.
        generated: int64 `[k, L]`, generated SIDs, best first, also those outside the catalogue.
        generated_scores: float32 `[k]`.
        funnel: as in `Result`.
        error: where the model's logits were unusable; then all else is empty.
    """

    positions: np.ndarray
    sids: np.ndarray
    scores: np.ndarray
    generated: np.ndarray
    generated_scores: np.ndarray
    funnel: dict = field(default_factory=dict)
    error: RequestError | None = None

    @staticmethod
    def nothing(num_levels: int, error: RequestError) -> Found:
        """Return what a request gets that failed."""
        sids, scores = np.empty((0, num_levels), np.int64), np.empty(0, np.float32)
        return Found(np.empty(0, np.int64), sids, scores, sids, scores, {}, error)


def find_ads(
    index: Index,
    requests: Sequence[Request],
    beams: Beams,
    unknown_items: np.ndarray,
    top_k: int | None,
) -> list[Found]:
    """Expand each request's SIDs into its eligible ads.

    Args:
        index: the version that was searched.
        requests: B of them.
        beams: of these.
        unknown_items: int64 `[B]`, for the funnel.
        top_k: ads per request where it does not say so itself; None for all.
    """
    tokens, nodes, scores = (t.numpy() for t in (beams.tokens, beams.nodes, beams.scores))
    return [
        _find(index, request, tokens[b], nodes[b], scores[b], int(unknown_items[b]), top_k)
        if beams.faults[b] is None
        else Found.nothing(index.num_levels, RequestError("logits", beams.faults[b]))
        for b, request in enumerate(requests)
    ]


def _find(
    index: Index,
    request: Request,
    tokens: np.ndarray,
    nodes: np.ndarray,
    scores: np.ndarray,
    unknown_items: int,
    top_k: int | None,
) -> Found:
    # Copies in any case: the search will write its memory again. Mostly every beam is alive and
    # in the catalogue, and whole arrays are copied faster than what masks pick.
    alive = scores > -np.inf
    kept = slice(None) if alive.all() else alive
    tokens, leaves, scores = (array[kept].copy() for array in (tokens, nodes, scores))
    known = np.flatnonzero(leaves >= 0)
    if len(known) < len(leaves):
        leaves = leaves[known]
    expansion = index.expand(leaves - index.trie.first_leaf, request.targeting)
    top_k = top_k if request.top_k is None else request.top_k
    positions, rows = expansion.positions[:top_k], known.take(expansion.rows[:top_k])
    funnel = {
        "generated_sids": len(scores),
        "catalog_sids": len(known),
        "eligible_sids": _num_distinct(expansion.rows),
        "expanded_ads": expansion.num_expanded,
        "dropped": expansion.dropped,
        "eligible_ads": len(expansion.positions),
        "returned_ads": len(positions),
        "unknown_items": unknown_items,
    }
    found_sids, found_scores = tokens.take(rows, axis=0), scores.take(rows)
    return Found(positions, found_sids, found_scores, tokens, scores, funnel)


def _num_distinct(ascending: np.ndarray) -> int:
    """How many different numbers there are, equal ones being neighbours."""
    return int(np.count_nonzero(ascending[1:] != ascending[:-1])) + (len(ascending) > 0)
