"""What the engine gives back for one request, as arrays: no Python object per ad."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from grace import _native
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
        text: what `to_json` returns, where it is written already.
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
    text: bytes | None = None

    def to_json(self) -> bytes:
        """Return `{"id", "version", "ads": [{"ad_id", "sid", "score"}], "funnel"}` as UTF-8.

        Scores are the shortest decimals that read back as the same float32. A wrong request's
        answer is `{"id", "version", "error": {"field", "message"}}`.
        """
        if self.text is not None:
            return self.text
        if self.error is None:
            return write_json([self])[0]
        error = {"field": self.error.field, "message": self.error.message}
        return _json({"id": self.id, "version": self.version, "error": error})

    def ad_id_bytes(self) -> bytes:
        """Return the ads' ids as the Open Inference Protocol lays a BYTES tensor out.

        Each is its length, four bytes little-endian, and its text as UTF-8; an integer id is
        written in decimals.
        """
        return _native.id_bytes(*self.index.data.ad_ids.arrays, self.positions)


def write_json(answers: Sequence[Answer]) -> list[bytes]:
    """Return the text of each of one batch's answers, none of them an error.

    As many threads as torch uses share them, and none holds the interpreter as it writes.
    """
    if not answers:
        return []
    pieces = [
        (
            _json({"id": one.id, "version": one.version})[:-1] + b',"ads":',
            one.positions, one.sids, one.scores, b',"funnel":' + _json(one.funnel) + b"}",
        )
        for one in answers
    ]  # fmt: skip
    ids = answers[0].index.data.ad_ids.arrays
    return _native.answers_json(pieces, *ids, torch.get_num_threads())


_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))


def _json(value: dict) -> bytes:
    return _ENCODER.encode(value).encode()
