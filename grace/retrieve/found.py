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
    """What was found for one request: n ads, out of K beams.

    Attributes:
        positions: int64 `[n]`, ads by (score descending, SID, ad id), cut at `top_k`.
        sids: int64 `[n, L]`, the SID of each ad.
        scores: float32 `[n]`, log-probability of each ad's SID.
        beam_sids: int64 `[K, L]`, generated SIDs, best first, also those outside the catalogue.
        beam_scores: float32 `[K]`; -inf marks a dead beam.
        funnel: as in `Result`.
        error: where the model's logits were unusable; then all else is empty.
    """

    positions: np.ndarray
    sids: np.ndarray
    scores: np.ndarray
    beam_sids: np.ndarray
    beam_scores: np.ndarray
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
    tokens, nodes, scores = (
        np.ascontiguousarray(t.numpy()) for t in (beams.tokens, beams.nodes, beams.scores)
    )
    limits = [top_k if request.top_k is None else request.top_k for request in requests]
    # A client may ask for more than native code can count to, and more than there are is all.
    limits = [None if limit is None else min(limit, index.num_ads) for limit in limits]
    ads = index.find(tokens, nodes, scores, [request.targeting for request in requests], limits)
    found = []
    for b, (one, fault) in enumerate(zip(ads, beams.faults, strict=True)):
        if fault is not None:
            found.append(Found.nothing(index.num_levels, RequestError("logits", fault)))
            continue
        generated, catalog, eligible, expanded, accepted = one.counts.tolist()
        funnel = {
            "generated_sids": generated,
            "catalog_sids": catalog,
            "eligible_sids": eligible,
            "expanded_ads": expanded,
            "dropped": dict(zip(index.refusal_reasons, one.dropped.tolist(), strict=True)),
            "eligible_ads": accepted,
            "returned_ads": len(one.positions),
            "unknown_items": int(unknown_items[b]),
        }
        found.append(Found(one.positions, one.sids, one.scores, tokens[b], scores[b], funnel))
    return found
