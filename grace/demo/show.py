"""The demo's report on a terminal."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console
from rich.table import Table

from grace.demo.measure import SeedMean, unit_of
from grace.demo.people import Person
from grace.demo.pipeline import DemoReport


def show(report: DemoReport, out: Path, console: Console) -> None:
    """Print a report and what to type next.

    Args:
        out: the folder that the demo wrote.
    """
    for line in data_lines(report):
        console.print(line, highlight=False)
    console.print(modes_table(report))
    console.print(differences_table(report))
    console.print(funnel_table(report))
    console.print(latency_table(report))
    console.print("\nIn words; what people have rated already is left out of their lists:")
    for person in report.described:
        for line in person_lines(person):
            console.print(line, highlight=False, markup=False)
    console.print()
    for check in report.checks:
        console.print(f"ok  {check}", highlight=False, markup=False)
    spent = ", ".join(f"{step} {seconds:.0f} s" for step, seconds in report.seconds.items())
    console.print(f"\n{sum(report.seconds.values()):.0f} s: {spent}", highlight=False)
    console.print("\nNext:", highlight=False)
    for command in next_commands(report, out):
        # One command a line, however long: it is there to be copied.
        console.print(f"  {command}", highlight=False, markup=False, soft_wrap=True)


def data_lines(report: DemoReport) -> Iterator[str]:
    """What the demo ran on, and what a seed varied."""
    yield (
        f"MovieLens-100K: {report.people:,} people, {report.films:,} films, "
        f"{report.ratings:,} ratings; the rules of real ads, dealt to the films"
    )
    yield (
        f"{report.sids:,} Semantic IDs, at most {report.ads_per_sid_max} films on one; prefixes by "
        f"length: {', '.join(f'{size:,}' for size in report.level_sizes)}"
    )
    for run in report.seeds:
        yield (
            f"seed {run.seed}: {run.epochs} epochs in {run.train_seconds:.0f} s, validation "
            f"recall@{run.recall_at} {run.valid_recall:.3f} with nothing filtered; "
            f"{run.eligible_targets:.1%} of people may see their held-out film"
        )


def modes_table(report: DemoReport) -> Table:
    """Every metric by mode, mean over seeds with its interval."""
    table = Table(
        title=f"Equal beams: plan ({', '.join(map(str, report.plan['widths']))}) "
        f"-> {report.plan['num_sids']} SIDs",
        caption=f"mean over {len(report.seeds)} seeds and 95 % interval of the mean (Student's t); "
        "a seed deals the rules and trains the model anew. pass place … is a share of what passes "
        "age …, pass window … of what passes both. recall: of the held-out film over all people; "
        "eligible recall: over those who may see it; @all: anywhere among the ads returned",
    )
    table.add_column("")
    for mode in report.modes:
        table.add_column(mode, justify="right")
    for metric in next(iter(report.modes.values())):
        cells = (interval(metrics[metric], metric) for metrics in report.modes.values())
        table.add_row(metric, *cells)
    return table


def differences_table(report: DemoReport) -> Table:
    """`exact` less every other mode; differences within a seed leave out what seeds share."""
    table = Table(
        title="exact less the other modes, seed by seed",
        caption="mean and 95 % interval of the difference; rates in percentage points",
    )
    table.add_column("")
    for mode in report.exact_minus:
        table.add_column(f"exact - {mode}", justify="right")
    for metric in next(iter(report.exact_minus.values())):
        if not ("recall" in metric or "per request" in metric or "rate" in metric):
            continue  # of SIDs and beams the table above says it all
        cells = (
            interval(metrics[metric], metric, signed=True)
            for metrics in report.exact_minus.values()
        )
        table.add_row(metric, *cells)
    return table


def funnel_table(report: DemoReport) -> Table:
    """Mean counts of every stage, and what each check dropped."""
    table = Table(
        title=f"Funnel, mean of {report.single_requests} requests, seed {report.seeds[0].seed}",
        caption="a film counts for the first check that refuses it",
    )
    table.add_column("")
    for mode in report.funnel:
        table.add_column(mode, justify="right")
    for stage in next(iter(report.funnel.values())):
        cells = (f"{counts[stage]:,.1f}" for counts in report.funnel.values())
        table.add_row(stage.replace("_", " "), *cells)
    return table


def latency_table(report: DemoReport) -> Table:
    """Milliseconds of each stage for requests that are answered alone."""
    table = Table(
        title=f"Milliseconds a request, p50 / p99 of {report.single_requests}, one at a time",
        caption="one thread; the trace is made outside of these times",
    )
    table.add_column("")
    for mode in report.latency_ms:
        table.add_column(mode, justify="right")
    for stage in next(iter(report.latency_ms.values())):
        cells = (
            f"{stages[stage]['p50']:.2f} / {stages[stage]['p99']:.2f}"
            for stages in report.latency_ms.values()
        )
        table.add_row(stage, *cells)
    return table


def person_lines(person: Person) -> Iterator[str]:
    """One person in words."""
    yield f"{person.who} → {'; '.join(person.shown)}"
    yield f"    rated last: {'; '.join(person.rated)}"
    yield f"    no. {person.refused_place} without rules, {person.refused}"


def next_commands(report: DemoReport, out: Path) -> list[str]:
    """What to type next, on the folder's files."""
    grace = "grace" if shutil.which("grace") else f"{os.path.relpath(sys.executable)} -m grace"
    on = f"--index {out / 'index'} --model {out / 'model'}"
    plan = f"--plan {','.join(map(str, report.plan['widths']))} --sids {report.plan['num_sids']}"
    return [
        f"{grace} index info --index {out / 'index'}",
        f"{grace} retrieve {on} --requests {out / 'requests.jsonl'} {plan} --top-k 10 "
        f"--out {out / 'answers.jsonl'}",
        f"{grace} evaluate {on} --requests {out / 'held-out.jsonl'} {plan} "
        f"--out {out / 'evaluation'}",
    ]


def interval(mean: SeedMean, metric: str, signed: bool = False) -> str:
    """Such as `61.3% (60.1-62.5)`, `12.3 (11.0-13.6)`, `+1.2 (+0.3 to +2.1)`."""
    if mean.value is None:
        return "-"
    is_rate = unit_of(metric) == "rate"
    sign, dash = ("+", " to ") if signed else ("", "-")
    percent = "%" if is_rate and not signed else ""
    value, low, high = (  # + 0.0 turns what rounds to -0.0 into 0.0
        None
        if number is None
        else f"{round(100 * number if is_rate else number, 1) + 0.0:{sign}.1f}"
        for number in (mean.value, mean.low, mean.high)
    )
    return f"{value}{percent}" if low is None else f"{value}{percent} ({low}{dash}{high})"
