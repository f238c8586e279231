"""An evaluation of rankings as tables for a terminal."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from rich.table import Table

from grace.evaluate.metrics import Estimate
from grace.evaluate.ranking.intervals import Quality
from grace.evaluate.ranking.run import BREADTH_K, COLD_EVENTS, RankingEvaluation


def tables(evaluation: RankingEvaluation) -> Iterator[Table]:
    """Quality, breadth and, for a generator, its tokenizer."""
    yield quality_table(evaluation)
    yield breadth_table(evaluation)
    if evaluation.tokenizer is not None:
        yield tokenizer_table(evaluation)


def quality_table(evaluation: RankingEvaluation) -> Table:
    """Metrics by group of users."""
    seeds = len(evaluation.runs)
    over = f"users and {seeds} seeds" if seeds > 1 else "users, one seed"
    caption = f"all {evaluation.num_items:,} items ranked; 95 % intervals over {over}"
    if evaluation.history_dropped:
        caption += "; items of the history taken out"
    if evaluation.fusion is not None:
        weights = ", ".join(f"{weight:.2g}" for weight in evaluation.fusion.weights)
        caption += f"; fused, weights {weights}, c {evaluation.fusion.constant}"
    table = Table(title=f"{evaluation.data}, {evaluation.split} split", caption=caption)
    table.add_column("metric")
    labels = {"cold": f"target with ≤ {COLD_EVENTS} training events", "warm": "with more"}
    for group, measured in evaluation.quality.items():
        users = next(iter(measured.values())).num_users
        table.add_column(f"{labels.get(group, group)}\n{users:,} users", justify="right")
    if seeds > 1:
        table.add_column("by seed", justify="right")
    for name, quality in evaluation.quality["all"].items():
        cells = [interval(measured[name]) for measured in evaluation.quality.values()]
        by_seed = [" ".join(f"{value:.4f}" for value in quality.by_seed)] if seeds > 1 else []
        table.add_row(name, *cells, *by_seed)
    return table


def breadth_table(evaluation: RankingEvaluation) -> Table:
    """Coverage and popularity bias, means over seeds."""
    table = Table(title=f"First {BREADTH_K} places")
    table.add_column("mean over seeds")
    table.add_column("", justify="right")
    for name in evaluation.breadth[0]:
        value = np.mean([seed[name] for seed in evaluation.breadth])
        table.add_row(name.replace("_", " "), f"{value:.3f}")
    table.add_row("items in a list twice", str(evaluation.repeated))
    table.add_row("empty places in lists", str(evaluation.unfilled))
    return table


def tokenizer_table(evaluation: RankingEvaluation) -> Table:
    """What the SIDs alone say."""
    report = evaluation.tokenizer
    table = Table(title="Tokenizer")
    table.add_column("check")
    table.add_column("", justify="right")
    table.add_row("SIDs of items", f"{report.num_sids:,} of {report.num_items:,}")
    table.add_row(
        "items per SID, mean / most", f"{report.items_per_sid:.2f} / {report.largest_sid}"
    )
    table.add_row("items that share their SID", f"{report.shared_share:.1%}")
    table.add_row("recall@10, items of a SID by id", f"{report.ordered_recall:.4f}")
    table.add_row("recall@10, items of a SID in any order", f"{report.shared_recall:.4f}")
    table.add_row("recall@10 of SID neighbours alone", interval(report.neighbours))
    table.add_row("the same, on training transitions", interval(report.train_neighbours))
    for warning in report.warnings:
        table.add_row("[red]warning[/red]", warning)
    return table


def interval(figure: Quality | Estimate) -> str:
    """Such as `0.0648 (0.0621-0.0675)`."""
    if figure.value is None:
        return "-"
    return f"{figure.value:.4f} ({figure.low:.4f}-{figure.high:.4f})"
