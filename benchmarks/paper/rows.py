"""What was measured, as rows of the record format."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from benchmarks import record
from benchmarks.paper.counts import PAPER_BOUNDS, Bucket, Outcome, buckets, equal_ads
from benchmarks.paper.figures import figure_of, position_name
from benchmarks.paper.search import Searched
from grace.evaluate.metrics import Estimate, bootstrap
from grace.evaluate.passes import default_bounds
from grace.index.info import LevelInfo
from grace.index.unions import UNIONS

MAIN_METRICS = ("latency", "pass_rate", "eligible_sid_rate")


@dataclass(frozen=True)
class ModeRun:
    """All that is known of one mode.

    Attributes:
        name: the mode.
        searched: its searches.
        outcome: its ads.
        times_ms: of matching a batch.
        levels: rows of its union matcher by prefix length; None where it has none.
        build_s: seconds to derive those rows; None likewise.
        listed: int64 [R] twice, ads left when only those are expanded whose word accepts, and how
            many of these the filter accepts; None except for `exact`.
    """

    name: str
    searched: Searched
    outcome: Outcome
    times_ms: list[float]
    levels: list[LevelInfo] | None = None
    build_s: float | None = None
    listed: tuple[np.ndarray, np.ndarray] | None = None


class Case:
    """Makes the rows of one case.

    Args:
        name: `paper`, `geo`, ...
        counts: sizes of the workload.
        compare: whether rows carry the paper's figures.
    """

    def __init__(self, name: str, counts: dict[str, int | float], compare: bool):
        self.name, self.counts, self.compare = name, counts, compare

    def row(self, variant: str, metric: str, unit: str, value: float, **rest: object) -> dict:
        """One row with the paper's figure; the rows of main metrics carry the case's counts."""
        reference = figure_of(variant, metric) if self.compare else None
        own = self.counts if metric in MAIN_METRICS else {}
        counts = own | rest.pop("counts", {}) or None
        return record.row(
            self.name, variant, metric, unit, value, counts=counts, reference=reference, **rest
        )

    def mode_rows(self, runs: list[ModeRun], chosen: np.ndarray | None = None) -> Iterator[dict]:
        """Rows about requests: all, or some, bool [R]."""
        if chosen is None:
            chosen = np.ones(len(runs[0].outcome.sids), bool)
        outcomes = {run.name: run.outcome.take(chosen) for run in runs}
        limit, control = equal_ads(outcomes)
        thirds = default_bounds(np.concatenate([o.generated for o in outcomes.values()]))
        for run in runs:
            outcome, name = outcomes[run.name], run.name
            generated, bitmask, both, final = outcome.stages.T
            rates = {
                "pass_rate": (final, generated),
                "bitmask_pass_rate": (bitmask, generated),
                "bloom_pass_rate": (both, bitmask),
                "own_rows_pass_rate": (both, generated),
                "eligible_sid_rate": (outcome.eligible_sids, outcome.sids),
            }
            if run.listed is not None:
                kept, accepted = (part[chosen] for part in run.listed)
                rates["pass_rate_eligible_only"] = (accepted, kept)
            for metric, (part, whole) in rates.items():
                yield from self._estimate(name, metric, bootstrap(part, whole))
            left = {"ads per request": float(np.mean(limit))}
            yield from self._estimate(name, "pass_rate_equal_ads", control[name], left)
            means = {
                "generated SIDs": outcome.sids,
                "eligible SIDs": outcome.eligible_sids,
                "generated ads": generated,
                "eligible ads": final,
            } | _beams(run, chosen)
            for metric, values in means.items():
                yield self.row(name, metric, "count", float(values.mean()), n=len(values))
            for label, bucket in buckets(outcome, PAPER_BOUNDS).items():
                yield from self._bucket(label, name, bucket)
            bounds = {f"bound {i}": bound for i, bound in enumerate(thirds, 1)}
            for i, bucket in enumerate(buckets(outcome, thirds).values(), 1):
                yield from self._bucket(f"third {i}", name, bucket, bounds)

    def _estimate(
        self, variant: str, metric: str, found: Estimate, counts: dict | None = None
    ) -> Iterator[dict]:
        """A rate with its 95 % interval over requests; none where nothing was there to measure."""
        if found.value is not None:
            row = self.row(variant, metric, "rate", found.value, n=found.n, counts=counts or {})
            yield row | {"low": found.low, "high": found.high}

    def _bucket(
        self, label: str, name: str, bucket: Bucket, bounds: dict[str, int] | None = None
    ) -> Iterator[dict]:
        counts = (bounds or {}) | {"users": bucket.users, "generated ads": int(bucket.stages[0])}
        rates = {"requests": bucket.user_share} | bucket.rates
        for metric, value in rates.items():
            yield self.row(name, f"{metric}, {label}", "rate", value, counts=counts)

    def batch_rows(self, run: ModeRun) -> Iterator[dict]:
        """Rows about batches and the index: time, storage (Table 1), fill rates (Table 2)."""
        if run.times_ms:
            yield self.row(run.name, "latency", "ms", **record.quantiles(run.times_ms))
        if run.build_s is not None:
            yield self.row(run.name, "deriving its rows", "ms", run.build_s * 1e3, n=1)
        for level in run.levels or []:
            if level.level == 0:
                continue
            where = position_name(level.level)
            yield self.row(run.name, f"transitions, {where}", "count", level.transitions)
            for kind, found in (("bitmask", level.bitmask), ("Bloom", level.bloom)):
                values = {
                    "rows": (found.rows, "count"),
                    "distinct rows": (found.distinct_rows, "count"),
                    "bytes": (found.num_bytes, "bytes"),
                    "distinct bytes": (found.distinct_bytes, "bytes"),
                    "fill": (found.fill_rate, "rate"),
                }
                partitioning = UNIONS[run.name]
                if partitioning.fill is None:
                    # The paper's fixed layout also holds partitions that no SID is in.
                    most = int(partitioning.per_level(level.level)[-1])
                    fixed = found.fill_rate * found.rows / (level.transitions * most)
                    values["fill with empty partitions"] = (fixed, "rate")
                for metric, (value, unit) in values.items():
                    yield self.row(run.name, f"{kind} {metric}, {where}", unit, value)


def _beams(run: ModeRun, chosen: np.ndarray) -> dict[str, np.ndarray]:
    """By metric, each chosen request's beams."""
    found = {}
    for t in range(run.searched.live.shape[1]):
        where = f"after token {t}" if t else "at the root"
        found[f"live beams {where}"] = run.searched.live[chosen, t]
        found[f"wasted beams {where}"] = run.searched.wasted[chosen, t]
    return found
