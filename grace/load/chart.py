"""Throughput against latency, as a picture."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from grace.files import atomic_write
from grace.load.capacity import Limits, capacity
from grace.load.measured import Measured

LINES = (("mean", "#8793a3"), ("p50", "#e3a857"), ("p99", "#1f6f8b"))


def draw(levels: Sequence[Measured], limits: Limits, path: str | os.PathLike) -> Path:
    """Write the chart as a PNG, whole or not at all, and return its path."""
    figure = Figure(figsize=(7.5, 4.6), layout="constrained")
    canvas = FigureCanvasAgg(figure)
    axes = figure.subplots()
    for closed, style, name in ((True, "o-", "closed loop"), (False, "s--", "open loop")):
        chosen = [each for each in levels if each.level.closed == closed]
        for line, color in LINES if chosen else ():
            points = [(each.throughput_per_s, latency_ms(each, line)) for each in chosen]
            known = [(x, y) for x, y in points if math.isfinite(y)]
            axes.plot(*zip(*known, strict=True) if known else ((), ()), style, color=color,
                      label=f"{line}, {name}", markersize=4)  # fmt: skip
        for each in chosen:
            if math.isfinite(height := latency_ms(each, "p99")):
                where = (each.throughput_per_s, height)
                axes.annotate(f"{each.level.size:g}", where, (3, 4), fontsize=7,
                              textcoords="offset points")  # fmt: skip
    for limit, line, color in zip(
        (limits.mean_ms, limits.p99_ms), ("mean", "p99"), (LINES[0][1], LINES[2][1]), strict=True
    ):
        axes.axhline(limit, color=color, linewidth=0.8, linestyle=":")
        axes.annotate(f"limit of {line}", (1, limit), (-2, 2), fontsize=7, color=color, ha="right",
                      xycoords=("axes fraction", "data"), textcoords="offset points")  # fmt: skip
    best = capacity(levels, limits)
    if best is not None:
        axes.axvline(best.throughput_per_s, color="#9a5b8f", linewidth=1)
        axes.set_title(
            f"capacity {best.throughput_per_s:,.0f}/s at {best.level.label}", fontsize=10
        )
    axes.set_yscale("log")
    axes.set_xlim(left=0)
    axes.set_xlabel("good answers a second")
    axes.set_ylabel("latency, ms")
    axes.grid(alpha=0.25, which="both", linewidth=0.5)
    axes.legend(fontsize=7, frameon=False)
    path = Path(path)
    with atomic_write(path) as file:
        canvas.print_png(file)
    return path


def latency_ms(each: Measured, line: str) -> float:
    """Return what a line shows of a level."""
    return each.mean_ms if line == "mean" else each.percentile_ms(float(line[1:]))
