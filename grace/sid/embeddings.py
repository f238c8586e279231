"""Item vectors from text, and the sources of vectors put together into one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from sklearn.feature_extraction.text import CountVectorizer, TfidfTransformer
from sklearn.utils.extmath import randomized_svd

from grace.errors import SidError
from grace.sid.threads import one_thread

MAX_TERMS = 200_000
"""The most frequent terms are kept; rarer ones hardly reach the leading singular vectors."""

MIN_KEPT = 0.01
"""TF-IDF rows have length 1. Where the SVD keeps less of one, its text shares no word that matters
with others, and the direction of what is left is noise."""


@dataclass(frozen=True, kw_only=True)
class Source:
    """One kind of item vectors.

    Attributes:
        name: for the report, such as `text`.
        vectors: `[N, D]` float32; a zero row is an item that this source knows nothing about.
        weight: its share of the squared distance between two items, relative to other sources.
    """

    name: str
    vectors: np.ndarray
    weight: float = 1.0


@one_thread
def text_embeddings(texts: Sequence[str], dimensions: int = 64, seed: int = 0) -> np.ndarray:
    """TF-IDF and a truncated SVD: latent semantic analysis (Deerwester et al., 1990).

    A term is a run of letters and digits, lower-cased, accents stripped. Its weight in a text is
    `(1 + ln tf) · (1 + ln((1 + N) / (1 + df)))`, rows are scaled to length 1, and the vector is the
    row times the leading right singular vectors (randomised SVD: Halko, Martinsson, Tropp, 2011).

    Args:
        texts: N texts; may be empty.
        dimensions: at most so many columns; fewer where there are fewer texts or terms.
        seed: of the randomised SVD.

    Returns:
        `[N, D]` float32. A text without terms, or none in common with others, is a zero row.

    Raises:
        SidError: if no text has a term.
    """
    counter = CountVectorizer(
        strip_accents="unicode", token_pattern=r"\w+", max_features=MAX_TERMS, dtype=np.float32
    )
    if not any(counter.build_analyzer()(text) for text in texts):
        raise SidError(
            f"none of the {len(texts)} items has any text; name other text columns, or make the "
            "vectors from an embedding column or from behaviour"
        )
    counts = counter.fit_transform(texts)
    counts.sort_indices()
    weights = TfidfTransformer(sublinear_tf=True).fit_transform(counts)
    dimensions = min(dimensions, *weights.shape)
    if weights.shape[1] <= dimensions:
        return weights.toarray()
    left, singular, _ = randomized_svd(weights, dimensions, random_state=seed)
    vectors = (left * singular).astype(np.float32)
    vectors[np.linalg.norm(vectors, axis=1) < MIN_KEPT] = 0
    return vectors


def sentence_embeddings(texts: Sequence[str], model: str) -> np.ndarray:
    """Encode texts with a sentence-transformer.

    Args:
        texts: N texts; may be empty.
        model: a folder or a name that `sentence_transformers.SentenceTransformer` takes.

    Returns:
        `[N, D]` float32. An empty text is a zero row.

    Raises:
        SidError: if the package is missing or the model cannot be loaded.
    """
    try:
        from sentence_transformers import SentenceTransformer
    except ImportError:
        raise SidError(
            "the text encoder sentence-transformer needs a package that is not installed: "
            "pip install grace[sentence-transformers]"
        ) from None
    try:
        encoder = SentenceTransformer(model)
    except (OSError, ValueError) as error:
        raise SidError(f"sentence-transformer {model}: cannot be loaded: {error}") from None
    vectors = np.asarray(encoder.encode(list(texts), show_progress_bar=False), np.float32)
    vectors[[not text.strip() for text in texts]] = 0
    return vectors


def combine(sources: Sequence[Source]) -> np.ndarray:
    """Normalise, weight and concatenate sources.

    Each source's rows are scaled to length 1 and multiplied by the root of its weight, so the
    squared distance of two items is `sum over sources of weight · 2 (1 - cosine)`. An item that a
    source knows nothing about gets the mean of that source's rows: the point nearest to all others,
    which leaves the decision to the other sources.

    Args:
        sources: at least one, all with N rows; weights positive.

    Returns:
        `[N, sum of D]` float32.
    """
    return np.concatenate([_scaled(source) for source in sources], axis=1)


def _scaled(source: Source) -> np.ndarray:
    norms = np.linalg.norm(source.vectors.astype(np.float64), axis=1)
    known = norms > 0
    scaled = np.zeros(source.vectors.shape)
    scaled[known] = source.vectors[known] / norms[known, None]
    if known.any():
        scaled[~known] = scaled[known].mean(axis=0)
    return (np.sqrt(source.weight) * scaled).astype(np.float32)


def count_unknown(vectors: np.ndarray) -> int:
    """Count the zero rows: items that a source knows nothing about."""
    return int((~vectors.any(axis=1)).sum())
