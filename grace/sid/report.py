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
        entropy_bits: entropy of the codes over the items, in bits; log2 V at most.
        perplexity: 2 to the entropy: how many equally frequent codes would be as hard to guess.
        resolved: what the level tells about the vector, `H(code | codes before)`, divided by the
            most it could, `min(ln V, H(vector | codes before))`; over distinct vectors, 1 where
            nothing is left to tell.
        ambiguity: how many distinct vectors still share all codes so far, in the geometric mean:
            exp of `H(vector | codes so far)`; 1 if all are told apart.
        relative_error: squared error after this level, summed over the items and divided by the
            squared distance to their mean, in the space that is quantised: the vectors, or an
            RQ-VAE's latents. None where SIDs are random.
        reconstruction_error: the same in the space of the vectors: for an RQ-VAE, of what its
            decoder makes of the codes so far.
    """

    level: int
    codes: int
    used: int
    used_share: float
    entropy_bits: float
    perplexity: float
    resolved: float
    ambiguity: float
    relative_error: float | None
    reconstruction_error: float | None


@dataclass(frozen=True, kw_only=True)
class PrefixReport:
    """The first codes of the SIDs as returned.

    Attributes:
        length: codes of the prefix.
        distinct: prefixes that some item has.
        items_sharing: items whose prefix another item has too.
        most_items: items of the prefix that has most.
    """

    length: int
    distinct: int
    items_sharing: int
    most_items: int


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
        quantizer: `kmeans`, `balanced-kmeans`, `rq-vae` or `random`.
        collisions: `cluster`, `resolve`, `reassign` or `extra-token`.
        distinct_sids: of the SIDs as returned.
        collision_rate: `1 - distinct_sids / items`.
        sids_shared: SIDs with more than one item.
        moved_items: whose SID was changed to make it unique.
        moved_prefixes: of those, whose codes before the last level changed too.
        ads_per_sid: p50, p99 and max over the SIDs.
        sids_by_ads: number of ads → SIDs that have so many, ascending.
        prefixes: one report per length of prefix; the last is the whole SID.
        sources: where the vectors came from; empty where they were given.
        unknown_behaviour_items: entries of the histories that are not in the catalogue.
    """

    items: int
    distinct_vectors: int
    levels: tuple[LevelReport, ...]
    resolved: float
    codes: int
    quantizer: str
    collisions: str
    distinct_sids: int
    collision_rate: float
    sids_shared: int
    moved_items: int
    moved_prefixes: int
    ads_per_sid: dict[str, float]
    sids_by_ads: dict[int, int]
    prefixes: tuple[PrefixReport, ...]
    sources: tuple[SourceReport, ...] = ()
    unknown_behaviour_items: int = 0

    def to_dict(self) -> dict:
        """Return plain dicts, lists and numbers, as JSON takes them."""
        return asdict(self)


def relative_errors(
    vectors: np.ndarray,
    counts: np.ndarray,
    quantised: np.ndarray,
    codebooks: Sequence[np.ndarray],
) -> list[float]:
    """Measure what each level leaves over: `LevelReport.relative_error`.

    Args:
        vectors: `[U, D]` float32, distinct rows.
        counts: `[U]` int64, items with each vector.
        quantised: `[U, L]` int32, the codes of the vectors.
        codebooks: L arrays `[K, D]` float32.
    """
    mean = np.average(vectors.astype(np.float64), axis=0, weights=counts)
    spread = float(counts @ ((vectors - mean) ** 2).sum(axis=1))
    residuals = vectors
    errors = []
    for level, codebook in enumerate(codebooks):
        residuals = subtract_code(residuals, codebook[quantised[:, level]])
        error = float(counts @ (residuals.astype(np.float64) ** 2).sum(axis=1))
        errors.append(error / spread if spread > 0 else 0.0)
    return errors


def measure_levels(
    counts: np.ndarray,
    quantised: np.ndarray,
    sizes: Sequence[int],
    codes: int,
    errors: Sequence[float | None],
    reconstruction: Sequence[float | None],
) -> tuple[LevelReport, ...]:
    """Measure how each level's codes are used.

    Args:
        counts: `[U]` int64, items with each distinct vector.
        quantised: `[U, L]` int32, the codes of the vectors.
        sizes: of the L codebooks.
        codes: V.
        errors: `LevelReport.relative_error` of each level.
        reconstruction: `LevelReport.reconstruction_error` of each level.
    """
    prefix = np.zeros(len(quantised), np.int64)
    told = 0.0
    levels = []
    for level, size in enumerate(sizes):
        used = quantised[:, level]
        usage = np.bincount(used, weights=counts)
        _, prefix = np.unique(prefix * size + used, return_inverse=True)
        before, told = told, _entropy(np.bincount(prefix))
        left = np.log(len(quantised)) - before
        entropy = _entropy(usage)
        levels.append(
            LevelReport(
                level=level + 1,
                codes=size,
                used=int((usage > 0).sum()),
                used_share=int((usage > 0).sum()) / codes,
                entropy_bits=float(entropy / np.log(2)),
                perplexity=float(np.exp(entropy)),
                resolved=_share(told - before, min(np.log(codes), left)),
                ambiguity=float(len(quantised) / np.exp(told)),
                relative_error=errors[level],
                reconstruction_error=reconstruction[level],
            )
        )
    return tuple(levels)


def make_report(
    levels: tuple[LevelReport, ...],
    distinct_vectors: int,
    quantised: np.ndarray,
    sids: np.ndarray,
    codes: int,
    quantizer: str,
    collisions: str,
) -> SidReport:
    """Count what the SIDs share and what resolving collisions moved.

    Args:
        levels: from `measure_levels`.
        distinct_vectors: how many different vectors the items have.
        quantised: `[N, L]` int32, before collisions were treated.
        sids: `[N, L]` int32 after that, or `[N, L + 1]` with the extra token.
        codes: V.
        quantizer: see `SidReport`.
        collisions: see `SidReport`.
    """
    _, ads = np.unique(sids, axis=0, return_counts=True)
    num_levels = quantised.shape[1]
    changed = sids[:, :num_levels] != quantised
    sids_by_ads = zip(*np.unique(ads, return_counts=True), strict=True)
    return SidReport(
        items=len(sids),
        distinct_vectors=distinct_vectors,
        levels=levels,
        resolved=resolved_share(levels, distinct_vectors, codes),
        codes=codes,
        quantizer=quantizer,
        collisions=collisions,
        distinct_sids=len(ads),
        collision_rate=1 - len(ads) / len(sids),
        sids_shared=int((ads > 1).sum()),
        moved_items=int(changed.any(axis=1).sum()),
        moved_prefixes=int(changed[:, :-1].any(axis=1).sum()),
        ads_per_sid={
            "p50": float(np.percentile(ads, 50)),
            "p99": float(np.percentile(ads, 99)),
            "max": int(ads.max()),
        },
        sids_by_ads={int(number): int(sids) for number, sids in sids_by_ads},
        prefixes=_measure_prefixes(sids),
    )


def _measure_prefixes(sids: np.ndarray) -> tuple[PrefixReport, ...]:
    prefix = np.zeros(len(sids), np.int64)
    reports = []
    for length, codes in enumerate(sids.T, start=1):
        _, prefix = np.unique(prefix * (int(codes.max()) + 1) + codes, return_inverse=True)
        items = np.bincount(prefix)
        reports.append(
            PrefixReport(
                length=length,
                distinct=len(items),
                items_sharing=int(items[items > 1].sum()),
                most_items=int(items.max()),
            )
        )
    return tuple(reports)


def resolved_share(levels: Sequence[LevelReport], distinct_vectors: int, codes: int) -> float:
    """Return `SidReport.resolved`."""
    told = np.log(distinct_vectors / levels[-1].ambiguity)
    return _share(told, min(len(levels) * np.log(codes), np.log(distinct_vectors)))


def _share(told: float, most: float) -> float:
    return float(min(told / most, 1)) if most > 1e-9 else 1.0


def _entropy(counts: np.ndarray) -> float:
    share = counts[counts > 0] / counts.sum()
    return float(-(share * np.log(share)).sum())
