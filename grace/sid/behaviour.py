"""Item vectors from what users did: items that stand near each other in histories lie close."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

import numpy as np
from scipy import sparse
from sklearn.utils.extmath import randomized_svd

from grace.sid.threads import one_thread

CONTEXT_SMOOTHING = 0.75
"""Exponent of the context counts: keeps rare items' PMI from dominating (Levy et al., 2015)."""

_CHUNK_SEQUENCES = 100_000


@one_thread
def behaviour_embeddings(
    sequences: Iterable[Sequence[int]],
    num_items: int,
    dimensions: int = 64,
    window: int = 5,
    seed: int = 0,
) -> np.ndarray:
    """Co-occurrence within a window → positive PMI → truncated SVD.

    With `n_ij` the weighted number of times items i and j stand at most `window` events apart and
    `p_j = n_j^0.75 / sum n^0.75`, the matrix is `max(0, ln(n_ij / (n_i p_j)))`: the matrix that
    skip-gram with negative sampling factorises (Levy and Goldberg, 2014; on item histories:
    item2vec, Barkan and Koenigstein, 2016). The vectors are `U S^(1/2)` of its SVD (Levy, Goldberg
    and Dagan, 2015).

    Args:
        sequences: one per user, item positions in `0..N-1`, oldest first.
        num_items: N.
        dimensions: at most so many columns; fewer where there are fewer items.
        window: how far apart two events may be; a pair at distance d weighs `window + 1 - d`.
        seed: of the randomised SVD.

    Returns:
        `[N, D]` float32. An item that no pair holds is a zero row.
    """
    counts = count_pairs(sequences, num_items, window)
    if counts.nnz == 0:
        return np.zeros((num_items, min(dimensions, num_items)), np.float32)
    association = positive_pmi(counts)
    rank = min(dimensions, num_items)
    left, singular, _ = randomized_svd(association, rank, random_state=seed)
    vectors = (left * np.sqrt(singular)).astype(np.float32)
    vectors[np.diff(association.indptr) == 0] = 0
    return vectors


def count_pairs(
    sequences: Iterable[Sequence[int]], num_items: int, window: int
) -> sparse.csr_matrix:
    """Count pairs of different items near each other: symmetric `[N, N]` float64, whole numbers.

    Whole numbers add up exactly, so the result does not depend on the order of the users.
    """
    counts = sparse.csr_matrix((num_items, num_items))
    for items, users in _chunks(sequences):
        longest = int(np.bincount(users).max(initial=0))
        for distance in range(1, min(window, longest - 1) + 1):  # beyond, there are no pairs
            same_user = users[distance:] == users[:-distance]
            earlier, later = items[:-distance][same_user], items[distance:][same_user]
            weight = np.full(len(earlier), float(window + 1 - distance))
            counts += sparse.csr_matrix((weight, (earlier, later)), counts.shape)
    counts = counts + counts.T
    counts.setdiag(0)
    counts.eliminate_zeros()
    return counts.tocsr()


def positive_pmi(counts: sparse.csr_matrix) -> sparse.csr_matrix:
    """Positive PMI `[N, N]` of symmetric pair counts, contexts smoothed."""
    totals = np.asarray(counts.sum(axis=1)).ravel()
    context = totals**CONTEXT_SMOOTHING
    context /= context.sum()
    pairs = counts.tocoo()
    pmi = np.log(pairs.data / (totals[pairs.row] * context[pairs.col]))
    association = sparse.csr_matrix((np.maximum(pmi, 0), (pairs.row, pairs.col)), counts.shape)
    association.eliminate_zeros()
    association.sort_indices()
    return association


def _chunks(sequences: Iterable[Sequence[int]]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    sequences = iter(sequences)
    while chunk := list(islice(sequences, _CHUNK_SEQUENCES)):
        lengths = [len(sequence) for sequence in chunk]
        items = np.fromiter((item for sequence in chunk for item in sequence), np.int64)
        yield items, np.repeat(np.arange(len(chunk)), lengths)
