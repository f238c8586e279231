"""What the engine gives back for one request, as arrays: no Python object per ad."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from grace.errors import RequestError
from grace.index import Index
from grace.retrieve.result import Trace


@dataclass(frozen=True)
class Answer:
    """The answer to one request; n is the number of ads it returns.

    Attributes:
        id: the request's own id, or None where it had none that could be read.
        version: the id of the index version that answered, all of it.
        index: that version.
        positions: int64 `[n]`, ads by (score descending, SID, ad id), cut at `top_k`; the ids are
            `index.take_ad_ids(positions)`.
        sids: int64 `[n, L]`, the SID of each ad.
        scores: float32 `[n]`, log-probability of each ad's SID.
        funnel: counts of every stage, as in `Result`.
        stages_ms: wall time of each stage of the request's batch, and of `queue`.
        batch_size: requests in that batch.
        error: where the request was wrong; then all else is empty.
        trace: only where it was asked for.
    """

    id: str | int | None
    version: str
    index: Index
    positions: np.ndarray
    sids: np.ndarray
    scores: np.ndarray
    funnel: dict = field(default_factory=dict)
    stages_ms: dict[str, float] = field(default_factory=dict)
    batch_size: int = 0
    error: RequestError | None = None
    trace: Trace | None = None

    def to_json(self) -> bytes:
        """Return `{"id", "version", "ads": [{"ad_id", "sid", "score"}], "funnel"}` as UTF-8."""
        import json

        if self.error is not None:
            error = {"field": self.error.field, "message": self.error.message}
            return json.dumps({"id": self.id, "version": self.version, "error": error}).encode()
        ads = [
            {"ad_id": ad_id, "sid": sid, "score": score}
            for ad_id, sid, score in zip(
                self.index.take_ad_ids(self.positions), self.sids.tolist(), self.scores.tolist(),
                strict=True,
            )
        ]  # fmt: skip
        answer = {"id": self.id, "version": self.version, "ads": ads, "funnel": self.funnel}
        return json.dumps(answer, ensure_ascii=False).encode()
