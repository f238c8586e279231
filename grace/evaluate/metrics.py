"""Ranking metrics of one held-out item a request, and intervals around what was measured."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

Z_95 = 1.959963984540054  # the standard normal quantile of a two-sided 95 % interval
RESAMPLES = 1000


@dataclass(frozen=True)
class Estimate:
    """A measured value with its 95 % interval.

    Attributes:
        value: None where nothing was there to measure; `low` and `high` are None then too.
        n: number of requests behind it, which are what varies; never the number of ads.
    """

    value: float | None
    low: float | None
    high: float | None
    n: int


def recall(ranks: np.ndarray, k: int) -> np.ndarray:
    """Whether each held-out item is among the first k: bool `[n]`.

    Args:
        ranks: int `[n]`, 1 for the first place, 0 where the item is not in the list at all.
    """
    return (ranks >= 1) & (ranks <= k)


def ndcg(ranks: np.ndarray, k: int) -> np.ndarray:
    """NDCG@k of each request, float64 `[n]`: `1 / log2(rank + 1)`, or 0 beyond place k.

    The ideal list has the one held-out item first and so a gain of 1.

    Args:
        ranks: as in `recall`.
    """
    hits = recall(ranks, k)
    return np.where(hits, 1 / np.log2(np.where(hits, ranks, 1) + 1), 0.0)


def wilson(hits: np.ndarray) -> Estimate:
    """Share of true values in bool `[n]` with the Wilson score interval.

    It stays inside 0–1 and has a width even where no or every value is true.
    """
    n = len(hits)
    if n == 0:
        return Estimate(None, None, None, 0)
    share = float(np.mean(hits))
    scale = 1 + Z_95**2 / n
    centre = (share + Z_95**2 / (2 * n)) / scale
    half = Z_95 / scale * math.sqrt(share * (1 - share) / n + Z_95**2 / (4 * n**2))
    # At 0 and 1 the interval ends there; rounding may not step over it.
    return Estimate(share, min(share, max(0.0, centre - half)), max(share, centre + half), n)


def bootstrap(numerators: np.ndarray, denominators: np.ndarray, seed: int = 0) -> Estimate:
    """Sum of numerators by sum of denominators, with a percentile bootstrap over requests.

    Requests are drawn with replacement, each with all its ads or beams: those of one request are
    not independent of each other, and an interval that counted them would be far too narrow.

    Args:
        numerators: `[n]`, such as accepted ads of each request.
        denominators: `[n]`, such as generated ads of each request; ones give a mean.
        seed: of the draws; the same seed gives the same interval.
    """
    n = len(numerators)
    total = float(np.sum(denominators))
    if total == 0:
        return Estimate(None, None, None, n)
    pairs = np.stack([numerators, denominators]).astype(np.float64)
    generator = np.random.default_rng(seed)
    sums = np.empty((RESAMPLES, 2))
    for resample in sums:
        times_drawn = np.bincount(generator.integers(n, size=n), minlength=n)
        resample[:] = pairs @ times_drawn
    sums = sums[sums[:, 1] > 0]
    low, high = np.quantile(sums[:, 0] / sums[:, 1], [0.025, 0.975])
    return Estimate(float(np.sum(numerators)) / total, float(low), float(high), n)


def mean(values: np.ndarray) -> Estimate:
    """Mean of one value a request, `[n]`, with its bootstrap interval."""
    return bootstrap(values, np.ones(len(values)))
