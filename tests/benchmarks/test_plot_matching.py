"""Pictures of the matching benchmark: one per case, the same bytes for the same numbers."""

from __future__ import annotations

from benchmarks import record
from benchmarks.paper.figures import POSITIONS
from benchmarks.plot_matching import draw_all

MODES = ("valid", "bitmask+bloom", "exact")


def case_rows(case: str) -> list[dict]:
    rows = []
    for mode in MODES:
        rates = ("pass_rate", "pass_rate_equal_ads", "eligible_sid_rate")
        rows += [record.row(case, mode, metric, "rate", 0.5) for metric in rates]
        for where in ("at the root", "after token 1", "after token 2"):
            rows.append(record.row(case, mode, f"live beams {where}", "count", 10))
            rows.append(record.row(case, mode, f"wasted beams {where}", "count", 4))
        rows.append(record.row(case, mode, "latency", "ms", 2))
    rows += [
        record.row(case, "bitmask+bloom", f"{kind} fill, {where}", "rate", 0.1)
        for kind in ("bitmask", "Bloom")
        for where in POSITIONS
    ]
    return rows


def test_a_picture_of_each_case_and_one_of_the_sweep(tmp_path):
    rows = case_rows("paper") + case_rows("h200-1e6-geo")
    rows += case_rows("x-sweep, 1.00% eligible") + case_rows("x-sweep, 100.00% eligible")
    paths = list(draw_all(rows, "h200", tmp_path))
    names = [path.name for path in paths]
    assert names == [
        "matching-h200-paper.svg", "matching-h200-1e6-geo.svg", "matching-h200-x-sweep.svg",
    ]  # fmt: skip
    first = [path.read_bytes() for path in paths]
    assert all(content.startswith(b"<?xml") for content in first)
    assert [path.read_bytes() for path in draw_all(rows, "h200", tmp_path)] == first
