"""What was measured, as tables for people and JSON for programs."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rich.table import Table

from grace.load.capacity import Limits, capacity
from grace.load.measured import Measured

PERCENTILES = (50, 90, 99, 99.9)
BUSY, LATE_MS = 0.9, 1.0
"""Share of a core, and lateness, past which the generator itself may be what is measured."""


def to_dict(levels: Sequence[Measured], limits: Limits) -> dict:
    """Return everything, with None for what is not known or not finite."""
    best = capacity(levels, limits)
    return {
        "limits": vars(limits),
        "levels": [_entry(each, limits) for each in levels],
        "capacity": None
        if best is None
        else {"in_flight": int(best.level.size), "throughput_per_s": best.throughput_per_s},
    }


def table(levels: Sequence[Measured], limits: Limits) -> Table:
    """Return a row a level; its figures are those of `to_dict`."""
    shown = Table(title="latency in ms; of all requests, those without an answer as never answered")
    for name in ("load", "answers/s", f"within {limits.p99_ms:g} ms", "mean"):
        shown.add_column(name, justify="right")
    for name in (*(f"p{percent:g}" for percent in PERCENTILES), "max"):
        shown.add_column(name, justify="right")
    shown.add_column("requests", justify="right")
    shown.add_column("without an answer", overflow="fold")
    shown.add_column("limits")
    for each in levels:
        failures = ", ".join(f"{name}: {count:,}" for name, count in each.failures.items())
        verdict = "stopped" if each.partial else "kept" if limits.keeps(each) else "broken"
        shown.add_row(
            each.level.label,
            f"{each.throughput_per_s:,.1f}",
            f"{each.goodput_per_s(limits.p99_ms):,.1f}",
            _milliseconds(each.mean_ms),
            *(_milliseconds(each.percentile_ms(percent)) for percent in PERCENTILES),
            _milliseconds(each.max_ms),
            f"{each.tally.begun:,}",
            failures,
            verdict,
        )
    return shown


def conclusions(levels: Sequence[Measured], limits: Limits) -> list[str]:
    """Return the capacity in words, and what makes the figures doubtful."""
    stated = f"mean at most {limits.mean_ms:g} ms, P99 at most {limits.p99_ms:g} ms"
    lines = []
    for closed, name in ((True, "capacity"), (False, "open loop")):
        measured = [each for each in levels if each.level.closed == closed and not each.partial]
        if not measured:
            continue
        best = capacity(levels, limits, closed)
        if best is None:
            lines.append(f"{name} ({stated}): no level kept the limits")
            continue
        rate, label = f"{best.throughput_per_s:,.1f} requests/s", best.level.label
        lines.append(f"{name} ({stated}): {rate} at {label}")
        if limits.keeps(max(measured, key=lambda each: each.level.size)):
            lines.append("  the highest level kept them, too: the server may carry more")
    for each in levels:
        late_ms = each.tally.late.get_value_at_percentile(99) / 1e3
        if each.tally.cpu > BUSY:
            doubt = f"the generator used {each.tally.cpu:.0%} of a core"
        elif not each.level.closed and late_ms > LATE_MS:
            doubt = f"1 % of the requests left {late_ms:.1f} ms late or more"
        else:
            continue
        lines.append(f"warning: {each.level.label}: {doubt}; more --processes on free cores")
    return lines


def _entry(each: Measured, limits: Limits) -> dict:
    percentiles = {f"p{percent:g}_ms": each.percentile_ms(percent) for percent in PERCENTILES}
    numbers = {
        "throughput_per_s": each.throughput_per_s,
        "goodput_per_s": each.goodput_per_s(limits.p99_ms),
        "mean_ms": each.mean_ms,
        **percentiles,
        "max_ms": each.max_ms,
        "window_s": each.tally.window_s,
        "generator_cpu": each.tally.cpu,
        "late_p99_ms": each.tally.late.get_value_at_percentile(99) / 1e3,
    }
    return {
        "loop": "closed" if each.level.closed else "open",
        "size": each.level.size,
        "requests": each.tally.begun,
        "answered": each.answered,
        **{name: value if math.isfinite(value) else None for name, value in numbers.items()},
        "failures": {
            outcome: {"count": count, **_known(each, outcome)}
            for outcome, count in each.failures.items()
        },
        "partial": each.partial,
        "keeps_limits": not each.partial and limits.keeps(each),
    }


def _known(each: Measured, outcome: str) -> dict[str, float]:
    """How long requests of a bad outcome took to end."""
    histogram = each.tally.latencies.get(outcome)
    if histogram is None:
        return {}
    return {f"p{p}_ms": histogram.get_value_at_percentile(p) / 1e3 for p in (50, 99)}


def _milliseconds(value: float) -> str:
    if math.isnan(value):
        return ""
    if math.isinf(value):
        return "never"
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"
