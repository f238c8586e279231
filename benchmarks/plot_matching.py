"""Draw what `benchmarks.matching` recorded: a picture of each case, and one of the sweep.

    python -m benchmarks.plot_matching                # every result file, into docs/images

`matching-<machine>-<case>.svg` shows how much of what a mode generates is eligible, where its beams
go, how full its unions are and how long it takes; of a sweep, whose case ends in `-sweep`, eligible
SIDs and passing ads by the share of ads that are eligible.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from benchmarks import record
from benchmarks.paper.figures import POSITIONS
from grace.evaluate.chart import COLORS
from grace.files import atomic_write

SWEEP = re.compile(r"(?P<name>.*), (?P<percent>[\d.]+)% eligible")
STYLE = {"svg.hashsalt": "grace", "svg.fonttype": "none"}
RATES = {
    "pass_rate": "ads that pass",
    "pass_rate_equal_ads": "ads that pass,\nequal numbers of ads",
    "eligible_sid_rate": "SIDs with an\neligible ad",
}
Values = dict[tuple[str, str], float]  # (variant, metric) -> value


def main() -> None:
    """Draw every case of every machine's result file."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, default=record.ROOT / "docs" / "images")
    options = parser.parse_args()
    for path in sorted(record.RESULTS.glob("*/matching.json")):
        for drawn in draw_all(json.loads(path.read_text())["rows"], path.parent.name, options.out):
            print(drawn)


def draw_all(rows: Sequence[dict], machine: str, out: Path) -> Iterator[Path]:
    """Draw the cases of one result file; yields the pictures' paths."""
    cases: dict[str, Values] = {}
    for row in rows:
        cases.setdefault(row["case"], {})[row["variant"], row["metric"]] = row["value"]
    sweeps: dict[str, dict[float, Values]] = {}

    def path(name: str) -> Path:
        stem = name if name.startswith(f"{machine}-") else f"{machine}-{name}"
        return out / f"matching-{stem}.svg"

    for name, values in cases.items():
        if swept := SWEEP.fullmatch(name):
            sweeps.setdefault(swept["name"], {})[float(swept["percent"]) / 100] = values
        elif ("exact", "live beams at the root") in values:
            yield save(draw_case(values, name), path(name))
    for name, by_share in sweeps.items():
        yield save(draw_sweep(by_share, name), path(name))


def save(figure: Figure, path: Path) -> Path:
    """Write a picture, whole or not at all, the same bytes for the same numbers."""
    import matplotlib

    path.parent.mkdir(parents=True, exist_ok=True)
    with matplotlib.rc_context(STYLE), atomic_write(path) as file:
        figure.savefig(file, format="svg", metadata={"Date": None})
    return path


def draw_case(values: Values, name: str) -> Figure:
    """Four panels about one case."""
    modes = [mode for mode in COLORS if (mode, "pass_rate") in values]
    figure = Figure(figsize=(12, 7.5), layout="constrained")
    (rates, beams), (fill, time) = figure.subplots(2, 2)
    bars(rates, modes, [[values.get((m, key), 0) for key in RATES] for m in modes], "{:.0%}")
    rates.set_xticks(range(len(RATES)), RATES.values())
    rates.set_title("What is generated", loc="left", fontsize=11)
    rates.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    draw_beams(beams, values, modes)
    for mode in modes:
        for kind, line in (("Bloom", "-"), ("bitmask", "--")):
            keys = [(mode, f"{kind} fill, {where}") for where in POSITIONS]
            if keys[0] in values:
                heights = [values[key] for key in keys if key in values]
                fill.plot(heights, f"o{line}", color=COLORS[mode], label=kind)
    fill.set_xticks(range(len(POSITIONS)), POSITIONS)
    fill.set_title(
        "Share of 1 bits in a row (solid: Bloom, dashed: bitmask)", loc="left", fontsize=11
    )
    fill.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    fill.set_ylim(bottom=0)
    timed = [mode for mode in modes if mode != "valid" and (mode, "latency") in values]
    times = [values[mode, "latency"] for mode in timed]
    drawn = time.bar(timed, times, color=[COLORS[mode] for mode in timed])
    time.bar_label(drawn, [f"{record.format_number(ms)} ms" for ms in times], fontsize=8)
    time.margins(y=0.12)
    time.set_title("Matching one batch, ms", loc="left", fontsize=11)
    finish(figure, rates, modes, name)
    return figure


def draw_beams(axes: Axes, values: Values, modes: Sequence[str]) -> None:
    """Live beams as outlines, those of them that lead to an eligible ad filled."""
    steps = [
        step for step in range(1, 64) if (modes[0], f"live beams after token {step}") in values
    ]
    keys = [f"beams after token {step}" for step in steps]
    live = [[values[mode, f"live {key}"] for key in keys] for mode in modes]
    wasted = [[values[mode, f"wasted {key}"] for key in keys] for mode in modes]
    useful = [
        [a - b for a, b in zip(*pair, strict=True)] for pair in zip(live, wasted, strict=True)
    ]
    bars(axes, modes, live, None, fill=False)
    bars(axes, modes, useful, None)
    axes.set_xticks(range(len(keys)), [f"after token {step}" for step in steps])
    axes.set_title("Live beams; filled: with an eligible ad below", loc="left", fontsize=11)


def bars(
    axes: Axes,
    modes: Sequence[str],
    heights: list[list[float]],
    form: str | None,
    fill: bool = True,
) -> None:
    """Groups of bars side by side, one bar per mode."""
    width = 0.84 / len(modes)
    for i, (mode, row) in enumerate(zip(modes, heights, strict=True)):
        places = [x + (i - (len(modes) - 1) / 2) * width for x in range(len(row))]
        color = {"color": COLORS[mode]} if fill else {"edgecolor": COLORS[mode], "fill": False}
        drawn = axes.bar(places, row, 0.9 * width, label=mode if fill else None, **color)
        if form is not None:
            axes.bar_label(drawn, [form.format(height) for height in row], fontsize=7)
            axes.margins(y=0.08)


def draw_sweep(by_share: dict[float, Values], name: str) -> Figure:
    """Two panels: eligible SIDs and passing ads by the share of eligible ads."""
    shares = sorted(by_share)
    modes = [mode for mode in COLORS if (mode, "pass_rate") in by_share[shares[-1]]]
    figure = Figure(figsize=(12, 4.2), layout="constrained")
    panels = figure.subplots(1, 2)
    titles = {
        "eligible_sid_rate": "Generated SIDs with an eligible ad",
        "pass_rate": "Ads that pass",
    }
    for axes, (metric, title) in zip(panels, titles.items(), strict=True):
        for number, mode in enumerate(modes):
            known = [share for share in shares if (mode, metric) in by_share[share]]
            heights = [by_share[share][mode, metric] for share in known]
            # Modes that agree lie on each other: later ones are smaller.
            size = 10 - 1.5 * number
            axes.plot(known, heights, "o-", color=COLORS[mode], label=mode, markersize=size)
        axes.set_xscale("log")
        axes.set_xlabel("ads of the catalogue that accept the request")
        axes.set_xticks(shares, [f"{100 * share:.6g}%" for share in shares], fontsize=8)
        axes.minorticks_off()
        axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
        axes.set_ylim(-0.02, 1.05)
        axes.set_title(title, loc="left", fontsize=11)
    finish(figure, panels[0], modes, name)
    return figure


def finish(figure: Figure, axes: Axes, modes: Sequence[str], name: str) -> None:
    """The legend below, with the case's name."""
    handles, labels = axes.get_legend_handles_labels()
    by_label = dict(zip(labels, handles, strict=True))
    figure.legend(
        [by_label[mode] for mode in modes], modes, loc="outside lower center", ncols=len(modes),
        frameon=False, title=name,
    )  # fmt: skip


if __name__ == "__main__":
    main()
