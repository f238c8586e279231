"""Embeddings in memory → SIDs, codebooks and a report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from grace.errors import SidError
from grace.sid.collapse import refuse_collapse
from grace.sid.collisions import resolve_collisions
from grace.sid.quantize import assign_codes, distinct_rows, fit_codebooks
from grace.sid.report import SidReport, make_report, measure_levels

MAX_SIZE = 1e30
"""Entries below this leave room for the residuals in float32."""

Collisions = Literal["keep", "resolve"]


@dataclass(frozen=True, eq=False)
class SidFit:
    """SIDs of N items.

    Attributes:
        sids: `[N, L]` int32, codes from 0, rows in the order of the embeddings.
        report: how well the codes are used and how close they come.
        codebooks: L arrays `[K, D]` float32, K at most V.
    """

    sids: np.ndarray
    report: SidReport
    codebooks: tuple[np.ndarray, ...]


def fit_sids(
    embeddings: np.ndarray,
    levels: int,
    codes: int,
    seed: int = 0,
    collisions: Collisions = "keep",
) -> SidFit:
    """Fit residual k-means and give every item a SID.

    Deterministic; permuting the rows permutes the SIDs. One exception: of *equal* vectors that
    `resolve` separates, the first row stays on the SID.

    Args:
        embeddings: `[N, D]` float32, N at least 1. Taken as they are: scale rows to length 1 first
            where only their direction means something.
        levels: L, tokens of a SID.
        codes: V, codes per level.
        seed: of k-means.
        collisions: `keep` leaves items that quantise alike on one SID, `resolve` moves all but one
            to the nearest free SID, so that no two items share one.

    Raises:
        SidError: if the embeddings are not finite, if the codes collapse, or if `resolve` has more
            items than SIDs.
        ValueError: on an impossible argument.
    """
    if levels < 1 or codes < 1:
        raise ValueError(f"levels and codes must be at least 1, got {levels} and {codes}")
    if collisions not in ("keep", "resolve"):
        raise ValueError(f"collisions must be 'keep' or 'resolve', got {collisions!r}")
    vectors = _checked(embeddings)
    distinct, inverse, counts = distinct_rows(vectors)
    codebooks, quantised = fit_codebooks(distinct, counts, levels, codes, seed)
    level_reports = measure_levels(distinct, counts, quantised, codebooks, codes)
    refuse_collapse(level_reports, counts, quantised, codes)
    sids = quantised = quantised[inverse]
    if collisions == "resolve":
        sids = resolve_collisions(vectors, quantised, codebooks, codes)
    report = make_report(level_reports, len(distinct), quantised, sids, codes, collisions)
    return SidFit(sids, report, codebooks)


def assign_sids(embeddings: np.ndarray, codebooks: Sequence[np.ndarray]) -> np.ndarray:
    """Give new items the SIDs that codebooks fitted before have for them, collisions kept.

    Args:
        embeddings: `[N, D]` float32, made as those were that the codebooks were fitted on.
        codebooks: L arrays `[K, D]` float32.

    Returns:
        `[N, L]` int32.

    Raises:
        SidError: if the embeddings are not finite or have another D than the codebooks.
    """
    vectors = _checked(embeddings)
    dimensions = codebooks[0].shape[1]
    if vectors.shape[1] != dimensions:
        raise SidError(
            f"embeddings have {vectors.shape[1]} dimensions, the codebooks {dimensions}; "
            "make the embeddings as those of the fit were made"
        )
    return assign_codes(vectors, codebooks)


def _checked(embeddings: np.ndarray) -> np.ndarray:
    embeddings = np.asarray(embeddings)
    if embeddings.ndim != 2 or 0 in embeddings.shape:
        raise ValueError(f"embeddings must have shape [N, D], got {list(embeddings.shape)}")
    with np.errstate(over="ignore"):  # what float32 cannot hold becomes inf and is named below
        vectors = np.ascontiguousarray(embeddings, np.float32)
    bad = np.argwhere(~(np.abs(vectors) < MAX_SIZE))
    if len(bad):
        row, column = bad[0].tolist()
        raise SidError(
            f"embeddings[{row}, {column}]: expected a finite number under {MAX_SIZE:g} in size, "
            f"got {embeddings[row, column]}"
        )
    return vectors
