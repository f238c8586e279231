"""The benchmark of the input stage: a tiny run, which also asserts that both ways read the same."""

from __future__ import annotations

from benchmarks import input_stage


def test_a_small_run_measures_both_ways():
    rows = input_stage.main(["--small", "--events", "5"])
    measured = {(row["variant"], row["metric"]) for row in rows}
    metrics = ("body", "targeting", "features", "input stage")
    assert measured == {(v, m) for v in ("native", "python") for m in metrics}
    assert all(row["counts"]["events_per_request"] == 5 for row in rows)
