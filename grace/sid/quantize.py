"""Residual k-means: a vector becomes L codes, each quantising what the levels before left over.

Multi-stage vector quantisation (Juang and Gray, 1982) with k-means at every stage, the tokenizer
that generative retrieval took over from it (TIGER, Rajput et al., 2023, learns the same residual
stages inside an autoencoder).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence

import numpy as np
from scipy import sparse
from sklearn.cluster import KMeans, MiniBatchKMeans
from sklearn.exceptions import ConvergenceWarning

from grace.sid.threads import one_thread

MAX_FULL_KMEANS = 50_000
"""Up to so many distinct vectors every Lloyd iteration reads all of them; beyond, mini-batches."""

FitLevel = Callable[[np.ndarray, np.ndarray, int, int], tuple[np.ndarray, np.ndarray]]
"""Residuals `[U, D]`, items each `[U]`, V, seed → codebook `[K, D]`, codes `[U]` int32."""

_BLOCK_ROWS = 8192
_RESOLUTION = 1e-6  # a residual this small beside its vector is float32 rounding, not information


def distinct_rows(vectors: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Group equal rows.

    Args:
        vectors: `[N, D]` float32.

    Returns:
        The distinct rows `[U, D]` in an order that depends on their values only; `[N]` int64, for
        each row the distinct row it equals; `[U]` int64, how many rows equal each distinct one.
    """
    vectors = np.ascontiguousarray(vectors + np.float32(0))  # -0.0 becomes 0.0: equal bytes
    as_bytes = vectors.view(np.dtype((np.void, vectors.shape[1] * vectors.itemsize))).ravel()
    _, first, inverse, counts = np.unique(
        as_bytes, return_index=True, return_inverse=True, return_counts=True
    )
    return vectors[first], inverse, counts


@one_thread
def fit_codebooks(
    vectors: np.ndarray,
    counts: np.ndarray,
    levels: int,
    codes: int,
    seed: int,
    fit_level: FitLevel | None = None,
) -> tuple[tuple[np.ndarray, ...], np.ndarray]:
    """Fit one codebook per level, each on the residuals of the levels before.

    Args:
        vectors: `[U, D]` float32, finite.
        counts: `[U]` int64, how many items each vector stands for.
        levels: L, at least 1.
        codes: V, codes per level.
        seed: of the k-means++ starts and of the mini-batches.
        fit_level: `fit_kmeans_level` by default.

    Returns:
        L codebooks `[K, D]` float32, and the codes of the vectors, `[U, L]` int32. K is V,
        or the number of distinct residuals where that is smaller: then each residual is its own
        code and nothing is left over.
    """
    codebooks = []
    quantised = np.empty((len(vectors), levels), np.int32)
    residuals = vectors
    for level in range(levels):
        fitted = (fit_level or fit_kmeans_level)(residuals, counts, codes, seed + level)
        codebook, quantised[:, level] = fitted
        codebooks.append(codebook)
        residuals = subtract_code(residuals, codebook[quantised[:, level]])
    return tuple(codebooks), quantised


def fit_kmeans_level(
    residuals: np.ndarray, counts: np.ndarray, codes: int, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Fit one level's codebook: k-means, every vector on its nearest code.

    Args:
        residuals: `[U, D]` float32.
        counts: `[U]`, how many items each stands for.
        codes: V.
        seed: of the k-means++ start.

    Returns:
        Codebook `[K, D]` float32 and codes `[U]` int32.
    """
    distinct, inverse, _ = distinct_rows(residuals)
    if len(distinct) <= codes:
        return distinct, inverse.astype(np.int32)
    weights = np.bincount(inverse, weights=counts)
    if len(distinct) <= MAX_FULL_KMEANS:
        kmeans = KMeans(codes, n_init=1, random_state=seed)
    else:
        batch = max(4096, 8 * codes)
        kmeans = MiniBatchKMeans(codes, batch_size=batch, n_init=1, random_state=seed)
    # Scaled by a power of two, so exactly: squares of float32 must neither overflow nor vanish.
    scale = np.float32(2.0 ** np.frexp(np.abs(distinct).max())[1])
    with warnings.catch_warnings():
        # Vectors that float32 distances cannot tell apart leave codes unused; the report says so.
        warnings.simplefilter("ignore", ConvergenceWarning)
        kmeans.fit(distinct / scale, sample_weight=weights)
    codebook = kmeans.cluster_centers_ * scale
    # A last step in float64: the mean of equal vectors is then that vector, bit for bit, and its
    # residual an exact zero. Float32 sums would leave dust for the next level to quantise.
    assigned = nearest_codes(distinct, codebook)
    shape = (codes, len(distinct))
    members = sparse.csr_matrix((weights, (assigned, np.arange(len(distinct)))), shape)
    sums = members @ distinct.astype(np.float64)
    totals = np.bincount(assigned, weights=weights, minlength=codes)
    used = np.flatnonzero(totals)
    codebook[used] = sums[used] / totals[used, None]
    codebook = codebook.astype(np.float32)
    return codebook, nearest_codes(residuals, codebook)


def nearest_codes(vectors: np.ndarray, codebook: np.ndarray) -> np.ndarray:
    """Number the nearest code of each vector `[N, D]`, int32 `[N]`; ties go to the lower code."""
    nearest = np.empty(len(vectors), np.int32)
    for start in range(0, len(vectors), _BLOCK_ROWS):
        block = slice(start, start + _BLOCK_ROWS)
        nearest[block] = relative_distances(vectors[block], codebook).argmin(axis=1)
    return nearest


def relative_distances(vectors: np.ndarray, codebook: np.ndarray) -> np.ndarray:
    """Rank codes for each vector: squared distances less the vector's own squared length.

    Args:
        vectors: `[N, D]` float32.
        codebook: `[K, D]` float32.

    Returns:
        `[N, K]` float64, comparable within a row. In float64, because an offset shared by all
        vectors would drown the differences in float32.
    """
    codebook = codebook.astype(np.float64)
    distances = vectors.astype(np.float64) @ (-2 * codebook.T)
    distances += (codebook**2).sum(axis=1)
    return distances


def subtract_code(vectors: np.ndarray, centroids: np.ndarray) -> np.ndarray:
    """Residuals `vectors - centroids`, `[N, D]` float32; what is only rounding becomes zero."""
    residuals = vectors - centroids
    size = _lengths(vectors) + _lengths(centroids)
    residuals[_lengths(residuals) <= _RESOLUTION * size] = 0
    return residuals


def _lengths(vectors: np.ndarray) -> np.ndarray:
    return np.sqrt((vectors.astype(np.float64) ** 2).sum(axis=1))


@one_thread
def assign_codes(vectors: np.ndarray, codebooks: Sequence[np.ndarray]) -> np.ndarray:
    """Quantise vectors with codebooks that are already there.

    Args:
        vectors: `[N, D]` float32, made as the vectors were that the codebooks were fitted on.
        codebooks: L arrays `[K, D]` float32.

    Returns:
        `[N, L]` int32 codes. Equal vectors get equal codes.
    """
    distinct, inverse, _ = distinct_rows(vectors)
    sids = np.empty((len(distinct), len(codebooks)), np.int32)
    residuals = distinct
    for level, codebook in enumerate(codebooks):
        sids[:, level] = nearest_codes(residuals, codebook)
        residuals = subtract_code(residuals, codebook[sids[:, level]])
    return sids[inverse]
