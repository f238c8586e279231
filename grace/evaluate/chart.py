"""An evaluation as one picture: recall, pass rate by stage, pass rate at fixed numbers of ads."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from grace.evaluate.metrics import Estimate
from grace.evaluate.run import Evaluation
from grace.files import atomic_write

COLORS = {
    "off": "#c9ced6",
    "valid": "#8793a3",
    "bitmask+bloom": "#e3a857",
    "static-kway": "#c97b4a",
    "dynamic-kway": "#9a5b8f",
    "exact": "#1f6f8b",
}


def draw(evaluation: Evaluation, path: str | os.PathLike) -> Path:
    """Write the chart as a PNG, whole or not at all, and return its path."""
    figure = Figure(figsize=(13, 4.2), layout="constrained")
    canvas = FigureCanvasAgg(figure)
    recall, stages, fixed = figure.subplots(1, 3)
    title = f"Held-out ad found (eligible: {evaluation.num_eligible:,} requests)"
    grouped_bars(recall, title, *recall_groups(evaluation))
    grouped_bars(stages, "Ads that pass, by stage", *stage_groups(evaluation))
    grouped_bars(fixed, "Ads that pass, first n generated", *fixed_groups(evaluation))
    handles, labels = recall.get_legend_handles_labels()
    figure.legend(
        handles,
        labels,
        loc="outside lower center",
        ncols=len(labels),
        frameon=False,
        title=f"matching mode · {evaluation.num_evaluated:,} requests · 95 % intervals",
    )
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path) as file:
        canvas.print_png(file)
    return path


Groups = tuple[list[str], dict[str, list[Estimate]]]  # labels on the x axis, and by mode a bar each


def recall_groups(evaluation: Evaluation) -> Groups:
    """Recall over all requests, then over those that may see the held-out ad."""
    measured = next(iter(evaluation.modes.values())).ranking
    names = [name for name in measured if name.removeprefix("eligible_").startswith("recall@")]
    labels = [
        f"{name.removeprefix('eligible_')}\n{'eligible' if 'eligible' in name else 'all'}"
        for name in names
    ]
    return labels, {
        mode: [measured.ranking[name] for name in names]
        for mode, measured in evaluation.modes.items()
    }


def stage_groups(evaluation: Evaluation) -> Groups:
    """The stages of GRACE's Table 3 over all requests."""
    names = ["bitmask", "bloom", "window", "final"]
    return names, {
        mode: [getattr(measured.pass_rates["all"], name) for name in names]
        for mode, measured in evaluation.modes.items()
    }


def fixed_groups(evaluation: Evaluation) -> Groups:
    """Pass rate at fixed numbers of ads, without those that no request generated."""
    modes = evaluation.modes.values()
    columns = list(zip(*(measured.fixed for measured in modes), strict=True))
    users = [max(rate.users for rate in rates) for rates in columns]
    shown = [i for i, count in enumerate(users) if count]
    labels = [f"n = {columns[i][0].ads}\n{users[i]:,} requests" for i in shown]
    return labels, {
        mode: [measured.fixed[i].final for i in shown]
        for mode, measured in evaluation.modes.items()
    }


def grouped_bars(
    axes: Axes, title: str, labels: Sequence[str], values: dict[str, list[Estimate]]
) -> None:
    """Bars side by side for each label, one per mode, with intervals and values above them."""
    width = 0.82 / len(values)
    for i, (mode, estimates) in enumerate(values.items()):
        drawn = [(x, each) for x, each in enumerate(estimates) if each.value is not None]
        places = [x + (i - (len(values) - 1) / 2) * width for x, _ in drawn]
        heights = [each.value for _, each in drawn]
        errors = [
            [each.value - each.low for _, each in drawn],
            [each.high - each.value for _, each in drawn],
        ]
        axes.bar(places, heights, 0.94 * width, label=mode, color=COLORS[mode])
        axes.errorbar(places, heights, errors, fmt="none", ecolor="#333333", elinewidth=0.8)
        for x, (_, each) in zip(places, drawn, strict=True):
            axes.annotate(
                f"{100 * each.value:.{0 if each.value >= 0.1 else 1}f}",
                (x, each.high),
                xytext=(0, 2),
                textcoords="offset points",
                ha="center",
                fontsize=7,
                color="#333333",
            )
    axes.set_title(title, loc="left", fontsize=11)
    axes.set_xticks(range(len(labels)), labels, fontsize=9)
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    axes.tick_params(length=0)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.grid(axis="y", color="#e6e6e6", linewidth=0.8)
    axes.set_axisbelow(True)
