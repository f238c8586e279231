"""The demo's numbers: one matching mode under one seed, and the mean of several seeds."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import t as student_t

from grace.decode import BeamPlan
from grace.evaluate import Evaluation, ModeEvaluation, evaluate
from grace.index import MATCHERS, Index
from grace.model import EncoderDecoder
from grace.progress import progress
from grace.retrieve import Result, Retriever

FIXED_ADS = 50
WARM_UP = 3  # requests that no latency counts


@dataclass(frozen=True)
class SeedMean:
    """Mean over seeds with its 95 % interval, of Student's t.

    Attributes:
        value: None where some seed has nothing to measure.
        low, high: None with a single seed, too.
        by_seed: the values themselves, in the order of the seeds.
    """

    value: float | None
    low: float | None
    high: float | None
    by_seed: list[float | None]


def seed_mean(values: Sequence[float | None]) -> SeedMean:
    """Average one measured value a seed."""
    values = list(values)
    if None in values:
        return SeedMean(None, None, None, values)
    mean = float(np.mean(values))
    if len(values) == 1:
        return SeedMean(mean, None, None, values)
    error = float(np.std(values, ddof=1)) / math.sqrt(len(values))
    half = float(student_t.ppf(0.975, len(values) - 1)) * error
    return SeedMean(mean, mean - half, mean + half, values)


def unit_of(metric: str) -> str:
    """Return "count" or "rate"."""
    return "count" if "beams" in metric or "per request" in metric else "rate"


def measure_modes(
    index: Index,
    model: EncoderDecoder,
    requests: Sequence[dict],
    plan: BeamPlan,
    ks: Sequence[int],
) -> tuple[dict[str, dict[str, float | None]], Evaluation]:
    """Evaluate all modes at equal beams.

    Returns:
        Mode → metric → value, and the evaluation. `recall` is of the held-out film over all
        requests, `eligible recall` over those that may see it, `@all` anywhere in the list.
    """
    ranks = {k: f"recall@{k}" for k in ks} | {index.num_ads: "recall@all"}
    evaluation = evaluate(
        index, model, requests, plan=plan, ks=list(ranks), bucket_bounds=(), fixed_ads=(FIXED_ADS,)
    )
    metrics = {mode: _metrics(measured, ranks) for mode, measured in evaluation.modes.items()}
    return metrics, evaluation


def _metrics(measured: ModeEvaluation, ranks: dict[int, str]) -> dict[str, float | None]:
    decoding, passed = measured.decoding, measured.pass_rates["all"]
    estimates = {"eligible SIDs": decoding.eligible_sid_rate}
    for t, (live, wasted) in enumerate(
        zip(decoding.live_beams, decoding.wasted_beams, strict=True)
    ):
        estimates |= {f"live beams, step {t}": live, f"wasted beams, step {t}": wasted}
    estimates |= {
        "ads generated per request": decoding.generated_ads,
        "eligible ads returned per request": decoding.returned_ads,
        "ad pass rate": decoding.ad_pass_rate,
        f"ad pass rate, first {FIXED_ADS}": measured.fixed[0].final,
        "pass age and gender": passed.bitmask,
        "pass place and watched": passed.bloom,
        "pass window and pause": passed.window,
    }
    for prefix in ("", "eligible_"):
        for k, name in ranks.items():
            estimates[prefix.replace("_", " ") + name] = measured.ranking[f"{prefix}recall@{k}"]
    return {name: estimate.value for name, estimate in estimates.items()}


def answer_singly(
    index: Index, model: EncoderDecoder, requests: Sequence[dict], plan: BeamPlan
) -> dict[str, list[Result]]:
    """Answer requests one at a time under every mode, with traces."""
    answers: dict[str, list[Result]] = {}
    for mode in MATCHERS:
        retriever = Retriever(index, model, plan, matching=mode, batch_size=1)
        retriever.retrieve(requests[:WARM_UP])
        answers[mode] = []
        with progress(f"one at a time, {mode}", len(requests)) as advance:
            for request in requests:
                answers[mode] += retriever.retrieve([request], trace=True)
                advance(1)
    return answers


def mean_funnel(results: Sequence[Result]) -> dict[str, float]:
    """Return the mean of every count of the funnel, what each check dropped included."""
    rows = [
        {name: count for name, count in result.funnel.items() if name != "dropped"}
        | {f"dropped by {check}": count for check, count in result.funnel["dropped"].items()}
        for result in results
    ]
    return {name: float(np.mean([row[name] for row in rows])) for name in rows[0]}


def latencies_ms(results: Sequence[Result]) -> dict[str, dict[str, float]]:
    """Return stage → {"p50", "p99"} of requests that were answered alone, `total` last."""
    stages: dict[str, list[float]] = {}
    for result in results:
        for stage, spent in result.trace.stages_ms.items():
            stages.setdefault(stage, []).append(spent)
    stages["total"] = np.sum(list(stages.values()), axis=0).tolist()
    return {
        stage: {"p50": float(np.median(spent)), "p99": float(np.quantile(spent, 0.99))}
        for stage, spent in stages.items()
    }


class Stopwatch:
    """Adds up seconds by step."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._last = time.perf_counter()

    def lap(self, step: str) -> None:
        """Book the time since the last lap on a step."""
        now = time.perf_counter()
        self.seconds[step] = self.seconds.get(step, 0.0) + now - self._last
        self._last = now
