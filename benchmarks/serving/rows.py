"""From what was measured to rows of the record."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from benchmarks import record
from benchmarks.serving.server import Passage

WITH_BLOOM = {
    "value": 53.6,
    "source": "GRACE, 6.4: P99 of all stages with bitmasks and Bloom filters, batches of 16",
}
STAGES = ("input", "compute", "post")


def load_rows(case: str, variant: str, loaded: dict, counts: dict) -> Iterator[dict]:
    """Rows of what `grace load` measured: the capacity, then each level."""
    limits = {f"limit_{name}": value for name, value in loaded["limits"].items()}
    best = loaded["capacity"]
    for level in loaded["levels"]:
        closed = level["loop"] == "closed"
        name = f"{level['size']:g} in flight" if closed else f"open loop {level['size']:,g}/s"
        yield from level_rows(case, variant, f", {name}", level, {})
        if closed and best is not None and level["size"] == best["in_flight"]:
            chosen = {**counts, **limits, "in_flight": best["in_flight"]}
            yield from level_rows(case, variant, "", level, chosen)


def level_rows(case: str, variant: str, suffix: str, level: dict, counts: dict) -> Iterator[dict]:
    """Rows `throughput`, `latency` and, where there were any, the share of `failures`."""
    failed = level["requests"] - level["answered"]
    counts = counts | {"requests": level["requests"], "failures": failed}
    counts |= {f"status {name}": each["count"] for name, each in level["failures"].items()}
    counts["generator_cpu"] = round(level["generator_cpu"], 3)
    rate = level["throughput_per_s"]
    yield record.row(case, variant, f"throughput{suffix}", "1/s", rate, counts=counts)
    if level["p50_ms"] is not None:
        means = {"mean_ms": round(level["mean_ms"], 3)}
        yield record.row(
            case, variant, f"latency{suffix}", "ms", level["p50_ms"], p99=level["p99_ms"],
            n=level["answered"], counts=means,
        )  # fmt: skip


def passage_rows(
    case: str,
    variant: str,
    passages: Sequence[Passage],
    calls_ms: Sequence[float],
    mean_ms: float,
    counts: dict,
) -> Iterator[dict]:
    """Rows of the stages that requests passed, as the server saw them.

    Args:
        passages: of requests answered in the window.
        calls_ms: how long the calls took that brought them, where HTTP is spoken.
        mean_ms: of the same requests, as the generator saw them.
        counts: of the workload.
    """
    expanded = float(np.mean([passage.expanded_ads for passage in passages]))
    batch = float(np.mean([1 / passage.batch_size for passage in passages]))
    counts = counts | {
        "expanded_ads_per_request": round(expanded, 1), "mean_batch": round(1 / batch, 2)
    }  # fmt: skip
    pipeline = record.quantiles([passage.pipeline for passage in passages])
    yield record.row(case, variant, "pipeline latency", "ms", **pipeline, counts=counts)
    yield record.row(
        case, variant, "pipeline latency, P99", "ms", pipeline["p99"],
        reference=WITH_BLOOM if case == "paper" else None,
    )  # fmt: skip
    for stage in STAGES:
        spent = record.quantiles([passage.stages[stage] for passage in passages])
        yield record.row(case, variant, f"stage {stage}", "ms", **spent)
    # Calls are timed in another process than requests: which is whose is not known, the mean is.
    mean_call = float(np.mean(calls_ms))
    http = mean_call - float(np.mean([passage.engine for passage in passages]))
    overhead = record.quantiles([max(http, 0.0) + passage.around for passage in passages])
    yield record.row(case, variant, "server overhead", "ms", **overhead)
    outside = max(mean_ms - mean_call, 0.0)
    yield record.row(case, variant, "outside the application, mean", "ms", outside)


def full_rows(
    case: str, variant: str, batches_ms: Sequence[float], stages: Sequence[dict], counts: dict
) -> Iterator[dict]:
    """Rows of batches that come alone, one after the other: the paper's Full latency."""
    full = record.quantiles(batches_ms)
    yield record.row(case, variant, "full latency", "ms", **full, counts=counts)
    yield record.row(
        case, variant, "full latency, P99", "ms", full["p99"],
        reference=WITH_BLOOM if (case, variant) == ("paper", "bitmask+bloom") else None,
    )  # fmt: skip
    for stage in STAGES:
        spent = record.quantiles([each[stage] for each in stages])
        yield record.row(case, variant, f"full latency, {stage}", "ms", **spent)
