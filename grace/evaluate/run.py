"""Leave-one-out evaluation of a model and an index under several matching modes."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from grace.catalog.values import checked_text, describe
from grace.decode import BeamPlan, check_device, full_plan
from grace.errors import ConfigError, DataError
from grace.evaluate.metrics import Estimate, bootstrap, mean, ndcg, recall, wilson
from grace.evaluate.observe import Observations, Targets, find_targets, observe
from grace.evaluate.passes import (
    FixedPassRate,
    PassRates,
    bucketed_pass_rates,
    default_bounds,
    fixed_pass_rates,
)
from grace.files import atomic_write
from grace.index import MATCHERS, Index
from grace.progress import progress
from grace.retrieve import Retriever
from grace.retrieve.paths import check_precision

FIXED_ADS = (10, 50, 100, 500)
MAX_COUNT = 10**9
"""Larger numbers of ads than any request has; their sums would not fit 64 bits."""


@dataclass(frozen=True)
class Decoding:
    """How the beams of one mode were spent, per request.

    Attributes:
        eligible_sid_rate: generated SIDs with at least one ad that accepts the request.
        live_beams: by step, beams that enter it.
        wasted_beams: by step, those of them below which no ad accepts the request.
        wasted_share: by step, wasted beams by live beams.
        generated_ads: ads before the last filter.
        returned_ads: ads after it.
        ad_pass_rate: returned by generated ads.
    """

    eligible_sid_rate: Estimate
    live_beams: list[Estimate]
    wasted_beams: list[Estimate]
    wasted_share: list[Estimate]
    generated_ads: Estimate
    returned_ads: Estimate
    ad_pass_rate: Estimate


@dataclass(frozen=True)
class ModeEvaluation:
    """Everything measured of one mode.

    Attributes:
        ranking: `recall@k`, `ndcg@k` and `sid_hit@k` over all requests, and each as `eligible_...`
            over the requests whose held-out ad they may see.
        pass_rates: GRACE's Table 3, by bucket label, `all` last.
        fixed: pass rate at a fixed number of generated ads.
    """

    ranking: dict[str, Estimate]
    decoding: Decoding
    pass_rates: dict[str, PassRates]
    fixed: list[FixedPassRate]


@dataclass(frozen=True)
class Evaluation:
    """A comparison of matching modes on the same requests with the same plan.

    Attributes:
        index_version: version of the index, None for one in memory.
        plan: `{"widths": [...], "num_sids": n}`, as asked for.
        at: ISO time that stood in for a missing `at`.
        num_requests: rows given.
        num_evaluated: rows behind the numbers: those that failed under no mode.
        num_known: evaluated rows whose held-out ad is in the catalogue. Others count as misses.
        num_eligible: evaluated rows whose held-out ad accepts the request.
        errors: up to ten failed rows, `{"request", "field", "message"}`, counted from 1.
        bucket_bounds: of generated ads in `pass_rates`.
        modes: by matching mode, in the order asked for.
    """

    index_version: str | None
    plan: dict
    at: str
    num_requests: int
    num_evaluated: int
    num_known: int
    num_eligible: int
    errors: list[dict]
    bucket_bounds: list[int]
    modes: dict[str, ModeEvaluation]

    def to_dict(self) -> dict:
        """Plain values for JSON."""
        return dataclasses.asdict(self)

    def save(self, out: str | os.PathLike) -> Path:
        """Write `evaluation.json` into a folder, whole or not at all, and return its path."""
        path = Path(out) / "evaluation.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps(self.to_dict(), indent=1, ensure_ascii=False) + "\n"
        with atomic_write(path) as file:
            # What UTF-8 cannot hold is written as \\uXXXX, which is JSON's own escape.
            file.write(text.encode("utf-8", "backslashreplace"))
        return path


def evaluate(
    index: Index,
    model: object,
    requests: Sequence[dict],
    modes: Sequence[str] = MATCHERS,
    plan: BeamPlan | None = None,
    ks: Sequence[int] = (10, 50),
    bucket_bounds: Sequence[int] | None = None,
    fixed_ads: Sequence[int] = FIXED_ADS,
    device: str = "cpu",
    precision: str = "auto",
) -> Evaluation:
    """Retrieve for every request under every mode and compare.

    All modes see the same requests, the same plan and the same moment. A request that fails under
    one mode is left out of all. `top_k` of a request is ignored: ranks need the whole list.

    Args:
        model: what `Retriever` takes.
        requests: each with `target`, the id of the held-out ad.
        modes: matching modes.
        plan: by default the retriever's, `full_plan`.
        ks: places at which ranking metrics are taken.
        bucket_bounds: ascending numbers of generated ads between buckets, such as the paper's
            `(5000, 10000)`; by default thirds of what all modes generated.
        fixed_ads: at how many generated ads the pass rate is compared.
        device, precision: as `Retriever` takes them.

    Raises:
        DataError: if a request has no target, or one that is no ad id, or none is left to evaluate.
        ConfigError: if a number of ads is out of range, the device cannot be used, or there is no
            such precision.
    """
    check_device(device)
    check_precision(precision)
    for name, counts in (("k", ks), ("bucket", bucket_bounds or ()), ("fixed_ads", fixed_ads)):
        check_counts(name, counts)
    at = datetime.now(UTC).isoformat(timespec="seconds")
    held_out = [target_of(request, number) for number, request in enumerate(requests, 1)]
    requests = [retrievable(request, at) for request in requests]
    targets = find_targets(index, requests, held_out)
    plan = plan or full_plan(index.num_levels)
    retrievers = {
        mode: Retriever(index, model, plan, mode, device, precision=precision) for mode in modes
    }
    observations = {}
    for mode, retriever in retrievers.items():
        with progress(f"evaluate {mode}", len(requests)) as advance:
            observations[mode] = observe(index, retriever, requests, targets, fixed_ads, advance)
    errors = {row: error for seen in observations.values() for row, error in seen.errors.items()}
    kept = np.array([row for row in range(len(requests)) if row not in errors], np.int64)
    if len(kept) == 0:
        row, error = min(errors.items(), default=(None, None))
        first = f"; request {row + 1}: {error['field']}: {error['message']}" if errors else ""
        raise DataError(f"none of {len(requests)} requests could be evaluated{first}")
    targets = Targets(targets.positions[kept], targets.eligible[kept])
    observations = {mode: seen.take(kept) for mode, seen in observations.items()}
    if bucket_bounds is None:
        bucket_bounds = default_bounds(
            np.concatenate([seen.generated_ads for seen in observations.values()])
        )
    return Evaluation(
        index_version=index.version,
        plan={"widths": list(plan.widths), "num_sids": plan.num_sids},
        at=at,
        num_requests=len(requests),
        num_evaluated=len(kept),
        num_known=int(np.count_nonzero(targets.positions >= 0)),
        num_eligible=int(np.count_nonzero(targets.eligible)),
        errors=[{"request": row + 1, **error} for row, error in sorted(errors.items())[:10]],
        bucket_bounds=list(bucket_bounds),
        modes=summarise(observations, targets, ks, bucket_bounds, fixed_ads),
    )


def check_counts(name: str, counts: Sequence[int]) -> None:
    """Refuse numbers of ads that are out of range."""
    for count in counts:
        if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= MAX_COUNT:
            raise ConfigError(
                f"{name}: expected integers from 1 to {MAX_COUNT}, got {describe(count)}"
            )


def target_of(request: dict, number: int) -> str | int:
    """The ad held out from a request."""
    target = request.get("target")
    if target is None:
        raise DataError(
            f"request {number}: target: expected the id of the ad held out from it, got none"
        )
    if type(target) not in (str, int):
        raise DataError(
            f"request {number}: target: expected a string or an integer, got {describe(target)}"
        )
    if isinstance(target, str):
        try:
            checked_text(target)
        except ValueError as error:
            raise DataError(f"request {number}: target: {error}") from None
    return target


def retrievable(request: dict, at: str) -> dict:
    """The request as the retriever takes it: with a moment, without `target` and `top_k`."""
    kept = {name: value for name, value in request.items() if name not in ("target", "top_k")}
    return kept | {"at": at if request.get("at") is None else request["at"]}


def summarise(
    observations: dict[str, Observations],
    targets: Targets,
    ks: Sequence[int],
    bucket_bounds: Sequence[int],
    fixed_ads: Sequence[int],
) -> dict[str, ModeEvaluation]:
    """Numbers of every mode from observations of the same requests."""
    fixed = fixed_pass_rates(
        {mode: seen.generated_ads for mode, seen in observations.items()},
        {mode: seen.accepted_first for mode, seen in observations.items()},
        fixed_ads,
    )
    return {
        mode: ModeEvaluation(
            ranking=ranking(seen, targets.eligible, ks),
            decoding=decoding(seen),
            pass_rates=bucketed_pass_rates(seen.passes, bucket_bounds),
            fixed=fixed[mode],
        )
        for mode, seen in observations.items()
    }


def ranking(seen: Observations, eligible: np.ndarray, ks: Sequence[int]) -> dict[str, Estimate]:
    """Metrics of the held-out ads; `eligible` bool `[n]` says which of them may be returned."""
    estimates = {}
    for prefix, rows in (("", np.ones(len(eligible), bool)), ("eligible_", eligible)):
        for k in ks:
            estimates[f"{prefix}recall@{k}"] = wilson(recall(seen.rank[rows], k))
            estimates[f"{prefix}ndcg@{k}"] = mean(ndcg(seen.rank[rows], k))
            estimates[f"{prefix}sid_hit@{k}"] = wilson(recall(seen.sid_rank[rows], k))
    return estimates


def decoding(seen: Observations) -> Decoding:
    """How beams were spent, over all requests."""
    steps = range(seen.live.shape[1])
    return Decoding(
        eligible_sid_rate=bootstrap(seen.eligible_sids, seen.generated_sids),
        live_beams=[mean(seen.live[:, t]) for t in steps],
        wasted_beams=[mean(seen.wasted[:, t]) for t in steps],
        wasted_share=[bootstrap(seen.wasted[:, t], seen.live[:, t]) for t in steps],
        generated_ads=mean(seen.generated_ads),
        returned_ads=mean(seen.returned_ads),
        ad_pass_rate=bootstrap(seen.returned_ads, seen.generated_ads),
    )
