"""The paper's tables on the terminal, made from the rows."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from benchmarks import record
from benchmarks.paper.counts import PAPER_BOUNDS
from benchmarks.paper.figures import POSITIONS, figure_of
from benchmarks.report import format_value, shown_unit
from grace.evaluate.passes import bucket_labels

SUMMARY = (
    "latency", "pass_rate", "own_rows_pass_rate", "pass_rate_equal_ads", "pass_rate_eligible_only",
    "eligible_sid_rate", "eligible ads", "generated ads", "eligible SIDs", "generated SIDs",
    "recall@10", "recall@50", "eligible_recall@10", "eligible_recall@50",
    "live beams after token 1", "live beams after token 2", "live beams after token 3",
    "wasted beams after token 1", "wasted beams after token 2", "wasted beams after token 3",
    "deriving its rows",
)  # fmt: skip


def show_case(rows: Sequence[dict], case: str, as_paper: bool = True) -> None:
    """Print Tables 1, 2 and 3 of one case and what the paper lacks.

    Args:
        rows: in the record format.
        case: which of them.
        as_paper: whether the case is comparable: Table 3 too, and the paper's figures in brackets.
    """
    console = Console()
    if not console.is_terminal:
        console.width = 160
    found = {(r["variant"], r["metric"]): r for r in rows if r["case"] == case}
    modes = list(dict.fromkeys(variant for variant, _ in found))
    unions = [mode for mode in modes if (mode, "transitions, root") in found]

    def add(title: str, heading: str, columns: Sequence[str], lines: dict) -> None:
        brackets = "; GRACE's figures in brackets" if as_paper else ""
        table = Table(title=f"{title} ({case}{brackets})")
        table.add_column(heading)
        for column in columns:
            table.add_column(column, justify="right")
        for label, keys in lines.items():
            cells = [cell(found.get(key), as_paper) for key in keys]
            if any(cells):
                table.add_row(label, *cells)
        if table.row_count:
            console.print(table)

    kinds = ("bitmask", "Bloom")
    forms = ("rows", "distinct rows", "bytes", "distinct bytes")
    for mode in unions:
        metrics = ["transitions", *(f"{kind} {form}" for kind in kinds for form in forms)]
        add(
            f"Table 1, {mode}: storage per decoding position", "position", metrics,
            {where: [(mode, f"{metric}, {where}") for metric in metrics] for where in POSITIONS},
        )  # fmt: skip
    add(
        "Table 2: mean fill rate", "matcher", POSITIONS,
        {
            f"{mode}, {kind}{form}": [(mode, f"{kind} fill{form}, {where}") for where in POSITIONS]
            for mode in unions
            for kind in kinds
            for form in ("", " with empty partitions")
            if form == "" or mode == "static-kway"
        },
    )  # fmt: skip
    columns = [
        "requests", "bitmask_pass_rate", "bloom_pass_rate", "own_rows_pass_rate", "pass_rate",
    ]  # fmt: skip
    thirds = [f"third {i}" for i in (1, 2, 3)]
    for mode in modes if as_paper else ():
        lines = {
            label: [(mode, f"{column}, {label}") for column in columns]
            for label in (*bucket_labels(PAPER_BOUNDS), *thirds)
        }
        lines["all"] = [(mode, column) for column in columns]
        add(f"Table 3, {mode}: pass rates by generated ads", "generated ads", columns, lines)
    add(
        "Per mode", "", modes,
        {metric: [(mode, metric) for mode in modes] for metric in SUMMARY},
    )  # fmt: skip


def cell(row: dict | None, as_paper: bool) -> str:
    """A value, and the paper's beside it where wanted; nothing where nothing was measured."""
    if row is None:
        return ""
    factor, unit = shown_unit(row["value"], row["unit"])
    text = f"{_format(row['value'] * factor, row['unit'])}{unit}"
    published = figure_of(row["variant"], row["metric"])
    if published is None or not as_paper:
        return text
    factor, unit = shown_unit(published["value"], row["unit"])
    return f"{text} [{_format(published['value'] * factor, row['unit'])}{unit}]"


def _format(value: float, unit: str) -> str:
    return record.format_number(value) if unit == "count" else format_value(value, unit)
