"""What a request gets back."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from grace.errors import RequestError
from grace.index import Index
from grace.retrieve.found import Found


class Ad(NamedTuple):
    """One retrieved ad; `score` is the log-probability of its SID."""

    ad_id: str | int
    sid: tuple[int, ...]
    score: float


class StepTrace(NamedTuple):
    """Beams that entered one decode step, and how many of them had no eligible ad below."""

    live: int
    wasted: int


@dataclass(frozen=True)
class Trace:
    """How a request was answered.

    Attributes:
        steps: one entry per decode step.
        stages_ms: wall time of each stage of the request's batch.
        batch_size: requests in that batch.
        matching: what decided which beams live, such as `exact, every node`.
    """

    steps: list[StepTrace]
    stages_ms: dict[str, float]
    batch_size: int
    matching: str


@dataclass(frozen=True)
class Result:
    """The answer to one request.

    Attributes:
        id: the request's own id, or None where it had none that could be read.
        ads: eligible ads by (score descending, SID, ad id), cut at `top_k`.
        sids: generated SIDs and their scores, best first, also those outside the catalogue.
        funnel: counts of every stage: `generated_sids`, `catalog_sids`, `eligible_sids`,
            `expanded_ads`, `dropped` (by `paused`, `bid_off`, `window` and each attribute; an ad
            counts for the first that refuses it), `eligible_ads`, `returned_ads`, `unknown_items`.
        error: `{"field", "message"}` where the request failed; then all else is empty.
        trace: only where it was asked for.
    """

    id: str | int | None
    ads: list[Ad] = field(default_factory=list)
    sids: list[tuple[tuple[int, ...], float]] = field(default_factory=list)
    funnel: dict = field(default_factory=dict)
    error: dict | None = None
    trace: Trace | None = None

    @staticmethod
    def failed(request_id: str | int | None, error: RequestError) -> Result:
        """Return the result of a request that is wrong."""
        return Result(request_id, error={"field": error.field, "message": error.message})

    @staticmethod
    def of(request_id: str | int, found: Found, index: Index, trace: Trace | None = None) -> Result:
        """Make objects of what was found for a request in an index."""
        if found.error is not None:
            return replace(Result.failed(request_id, found.error), trace=trace)
        sids = list(map(tuple, found.sids.tolist()))
        ad_ids = index.take_ad_ids(found.positions)
        alive = found.beam_scores > -np.inf
        generated = list(map(tuple, found.beam_sids[alive].tolist()))
        return Result(
            request_id,
            list(map(Ad, ad_ids, sids, found.scores.tolist())),
            list(zip(generated, found.beam_scores[alive].tolist(), strict=True)),
            found.funnel,
            trace=trace,
        )

    def to_dict(self) -> dict:
        """Return the result line: `{id, ads, funnel}`, or `{id, error}`."""
        if self.error is not None:
            return {"id": self.id, "error": self.error}
        ads = [{"ad_id": ad.ad_id, "sid": list(ad.sid), "score": ad.score} for ad in self.ads]
        return {"id": self.id, "ads": ads, "funnel": self.funnel}
