"""Embeddings in memory → SIDs, codebooks and a report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from grace.errors import SidError
from grace.sid.balance import fit_balanced_level
from grace.sid.collapse import refuse_collapse
from grace.sid.collisions import resolve_collisions
from grace.sid.extra_token import append_token, number_items
from grace.sid.quantize import assign_codes, distinct_rows, fit_codebooks, fit_kmeans_level
from grace.sid.random_sids import random_sids
from grace.sid.reassign import reassign_collisions
from grace.sid.report import SidReport, make_report, measure_levels, relative_errors
from grace.sid.rq_vae import Autoencoder, RqVaeConfig, fit_rq_vae, reconstruction_errors

MAX_SIZE = 1e30
"""Entries below this leave room for the residuals in float32."""

Quantizer = Literal["kmeans", "balanced-kmeans", "rq-vae", "random"]
Collisions = Literal["cluster", "resolve", "reassign", "extra-token"]


@dataclass(frozen=True, eq=False)
class SidFit:
    """SIDs of N items.

    Attributes:
        sids: `[N, L]` int32, codes from 0, rows in the order of the embeddings; `[N, L + 1]` with
            the extra token.
        report: how well the codes are used and how close they come.
        codebooks: L arrays `[K, D]` float32, K at most V; in an RQ-VAE's latent space if it has
            one, none where SIDs are random.
        autoencoder: the RQ-VAE's; None for other quantisers.
    """

    sids: np.ndarray
    report: SidReport
    codebooks: tuple[np.ndarray, ...]
    autoencoder: Autoencoder | None = None


def fit_sids(
    embeddings: np.ndarray,
    levels: int,
    codes: int,
    seed: int = 0,
    collisions: Collisions = "cluster",
    quantizer: Quantizer = "kmeans",
    rq_vae: RqVaeConfig | None = None,
) -> SidFit:
    """Fit a quantiser and give every item a SID.

    Deterministic; permuting the rows permutes the SIDs. Exceptions: of *equal* vectors that
    `collisions` separates, the first row comes first, and random SIDs go by row.

    Args:
        embeddings: `[N, D]` float32, N at least 1. Taken as they are: scale rows to length 1 first
            where only their direction means something. Random SIDs use N alone.
        levels: L, tokens of a SID.
        codes: V, codes per level.
        seed: of the quantiser.
        collisions: what happens to items that quantise alike. `cluster` leaves them on one SID;
            `resolve` moves all but the nearest to the nearest free SID, see `resolve_collisions`;
            `reassign` moves them by an optimal assignment, see `reassign_collisions`;
            `extra-token` numbers them in a level of their own, see `append_token`.
        quantizer: `kmeans` (residual k-means), `balanced-kmeans` (with clusters of equal size),
            `rq-vae`, or `random` (distinct SIDs drawn at random, the control).
        rq_vae: sizes and schedule of the RQ-VAE.

    Raises:
        SidError: if the embeddings are not finite, the codes collapse, or there are more items
            than SIDs where each must have its own.
        ValueError: on an impossible argument.
    """
    if levels < 1 or codes < 1:
        raise ValueError(f"levels and codes must be at least 1, got {levels} and {codes}")
    for value, known in ((collisions, Collisions), (quantizer, Quantizer)):
        if value not in get_args(known):
            raise ValueError(f"expected one of {', '.join(get_args(known))}, got {value!r}")
    if quantizer == "random":
        return _random_fit(len(embeddings), levels, codes, seed, collisions)
    vectors = _checked(embeddings)
    distinct, inverse, counts = distinct_rows(vectors)
    autoencoder = reconstruction = None
    if quantizer == "rq-vae" and len(distinct) > 1:
        fitted = fit_rq_vae(distinct, counts, levels, codes, seed, rq_vae or RqVaeConfig())
        autoencoder, codebooks, quantised = fitted.autoencoder, fitted.codebooks, fitted.codes
        reconstruction = reconstruction_errors(distinct, counts, fitted)
        distinct = fitted.latents
        vectors = distinct[inverse]
    else:
        fit_level = fit_balanced_level if quantizer == "balanced-kmeans" else fit_kmeans_level
        codebooks, quantised = fit_codebooks(distinct, counts, levels, codes, seed, fit_level)
    errors = relative_errors(distinct, counts, quantised, codebooks)
    sizes = [len(codebook) for codebook in codebooks]
    level_reports = measure_levels(
        counts, quantised, sizes, codes, errors, reconstruction or errors
    )
    refuse_collapse(level_reports, counts, quantised, codes)
    quantised = quantised[inverse]
    sids = SEPARATE[collisions](vectors, quantised, codebooks, codes)
    report = make_report(
        level_reports, len(distinct), quantised, sids, codes, quantizer, collisions
    )
    return SidFit(sids, report, codebooks, autoencoder)


def _clustered(
    vectors: np.ndarray, sids: np.ndarray, codebooks: Sequence[np.ndarray], codes: int
) -> np.ndarray:
    return sids


SEPARATE = {
    "cluster": _clustered,
    "resolve": resolve_collisions,
    "reassign": reassign_collisions,
    "extra-token": append_token,
}


def _random_fit(
    num_items: int, levels: int, codes: int, seed: int, collisions: Collisions
) -> SidFit:
    """Distinct SIDs have no collisions; with the extra token it is 0, so lengths compare."""
    drawn = random_sids(num_items, levels, codes, seed)
    nothing = [None] * levels
    sizes = [codes] * levels
    ones = np.ones(num_items, np.int64)
    reports = measure_levels(ones, drawn, sizes, codes, nothing, nothing)
    extra = collisions == "extra-token"
    sids = number_items(drawn, ones, codes) if extra else drawn
    return SidFit(
        sids, make_report(reports, num_items, drawn, sids, codes, "random", collisions), ()
    )


def assign_sids(
    embeddings: np.ndarray,
    codebooks: Sequence[np.ndarray],
    autoencoder: Autoencoder | None = None,
) -> np.ndarray:
    """Give new items the nearest SIDs of codebooks fitted before; several may get the same.

    Args:
        embeddings: `[N, D]` float32, made as those were that the codebooks were fitted on.
        codebooks: L arrays `[K, D]` float32.
        autoencoder: the RQ-VAE's, if the codebooks are one's.

    Returns:
        `[N, L]` int32.

    Raises:
        SidError: if the embeddings are not finite or have another D than the codebooks.
    """
    vectors = _checked(embeddings)
    if autoencoder is not None:
        vectors = autoencoder.encode(vectors)
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
