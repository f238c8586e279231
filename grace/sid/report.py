"""How good a set of SIDs is: what the codes tell, what collides, how close they come."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np

from grace.sid.quantize import subtract_code


@dataclass(frozen=True, kw_only=True)
class LevelReport:
    """One level of the codebooks, before collisions are resolved.

    Attributes:
        level: from 1.
        codes: size of the codebook; below V where there are fewer distinct residuals.
        used: codes that at least one item has.
        used_share: `used / V`.
        perplexity: exp of the entropy of the codes over the items: how many equally frequent codes
            would be as hard to guess.
        resolved: what the level tells about the vector, `H(code | codes before)`, divided by the
            most it could, `min(ln V, H(vector | codes before))`; over distinct vectors, 1 where
            nothing is left to tell.
        ambiguity: how many distinct vectors still share all codes so far, in the geometric mean:
            exp of `H(vector | codes so far)`; 1 if all are told apart.
        relative_error: squared reconstruction error after this level, summed over the items and
            divided by the squared distance to their mean.
    """

    level: int
    codes: int
    used: int
    used_share: float
    perplexity: float
    resolved: float
    ambiguity: float
    relative_error: float


@dataclass(frozen=True, kw_only=True)
class SourceReport:
    """One source of vectors: its weight, columns, and how many items it knows nothing about."""

    name: str
    weight: float
    dimensions: int
    items_without: int


@dataclass(frozen=True, kw_only=True)
class SidReport:
    """What `grace sid fit` made.

    Attributes:
        items: N.
        distinct_vectors: how many different vectors the items have.
        levels: one report per level.
        resolved: what the nearest codes tell about the vector, `H(SID)`, divided by the most they
            could, `min(L ln V, ln distinct_vectors)`.
        codes: V.
        collisions: `keep` or `resolve`.
        distinct_sids: of the SIDs as returned.
        collision_rate: `1 - distinct_sids / items`.
        sids_shared: SIDs with more than one item.
        moved_items: whose SID was changed to make it unique.
        moved_prefixes: of those, whose codes before the last level changed too.
        ads_per_sid: p50, p99 and max over the SIDs.
        sources: where the vectors came from; empty where they were given.
        unknown_behaviour_items: entries of the histories that are not in the catalogue.
    """

    items: int
    distinct_vectors: int
    levels: tuple[LevelReport, ...]
    resolved: float
    codes: int
    collisions: str
    distinct_sids: int
    collision_rate: float
    sids_shared: int
    moved_items: int
    moved_prefixes: int
    ads_per_sid: dict[str, float]
    sources: tuple[SourceReport, ...] = ()
    unknown_behaviour_items: int = 0

    def to_dict(self) -> dict:
        """Return plain dicts, lists and numbers, as JSON takes them."""
        return asdict(self)


def measure_levels(
    vectors: np.ndarray,
    counts: np.ndarray,
    quantised: np.ndarray,
    codebooks: Sequence[np.ndarray],
    codes: int,
) -> tuple[LevelReport, ...]:
    """Measure how each level's codes are used and what they leave over.

    Args:
        vectors: `[U, D]` float32, distinct rows.
        counts: `[U]` int64, items with each vector.
        quantised: `[U, L]` int32, the nearest codes of the vectors.
        codebooks: L arrays `[K, D]` float32.
        codes: V.
    """
    mean = np.average(vectors.astype(np.float64), axis=0, weights=counts)
    spread = float(counts @ ((vectors - mean) ** 2).sum(axis=1))
    prefix = np.zeros(len(vectors), np.int64)
    told = 0.0
    residuals = vectors
    levels = []
    for level, codebook in enumerate(codebooks):
        used = quantised[:, level]
        usage = np.bincount(used, weights=counts)
        residuals = subtract_code(residuals, codebook[used])
        error = float(counts @ (residuals.astype(np.float64) ** 2).sum(axis=1))
        _, prefix = np.unique(prefix * len(codebook) + used, return_inverse=True)
        before, told = told, _entropy(np.bincount(prefix))
        left = np.log(len(vectors)) - before
        levels.append(
            LevelReport(
                level=level + 1,
                codes=len(codebook),
                used=int((usage > 0).sum()),
                used_share=int((usage > 0).sum()) / codes,
                perplexity=float(np.exp(_entropy(usage))),
                resolved=_share(told - before, min(np.log(codes), left)),
                ambiguity=float(len(vectors) / np.exp(told)),
                relative_error=error / spread if spread > 0 else 0.0,
            )
        )
    return tuple(levels)


def make_report(
    levels: tuple[LevelReport, ...],
    distinct_vectors: int,
    quantised: np.ndarray,
    sids: np.ndarray,
    codes: int,
    collisions: str,
) -> SidReport:
    """Count what the SIDs share and what resolving collisions moved.

    Args:
        levels: from `measure_levels`.
        distinct_vectors: how many different vectors the items have.
        quantised: `[N, L]` int32, the nearest codes.
        sids: `[N, L]` int32, the same after collisions were treated.
        codes: V.
        collisions: `keep` or `resolve`.
    """
    _, ads = np.unique(sids, axis=0, return_counts=True)
    moved = (sids != quantised).any(axis=1)
    moved_prefix = (sids[:, :-1] != quantised[:, :-1]).any(axis=1)
    return SidReport(
        items=len(sids),
        distinct_vectors=distinct_vectors,
        levels=levels,
        resolved=resolved_share(levels, distinct_vectors, codes),
        codes=codes,
        collisions=collisions,
        distinct_sids=len(ads),
        collision_rate=1 - len(ads) / len(sids),
        sids_shared=int((ads > 1).sum()),
        moved_items=int(moved.sum()),
        moved_prefixes=int(moved_prefix.sum()),
        ads_per_sid={
            "p50": float(np.percentile(ads, 50)),
            "p99": float(np.percentile(ads, 99)),
            "max": int(ads.max()),
        },
    )


def resolved_share(levels: Sequence[LevelReport], distinct_vectors: int, codes: int) -> float:
    """Return `SidReport.resolved`."""
    told = np.log(distinct_vectors / levels[-1].ambiguity)
    return _share(told, min(len(levels) * np.log(codes), np.log(distinct_vectors)))


def _share(told: float, most: float) -> float:
    return float(min(told / most, 1)) if most > 1e-9 else 1.0


def _entropy(counts: np.ndarray) -> float:
    share = counts[counts > 0] / counts.sum()
    return float(-(share * np.log(share)).sum())
