"""The record format: what is refused, what is written, and that a file is replaced whole."""

from __future__ import annotations

import json
import math

import pytest

from benchmarks import record


def test_row_keeps_only_what_was_given():
    assert record.row("demo", "exact", "step", "ms", 2, n=3, p99=4) == {
        "case": "demo",
        "variant": "exact",
        "metric": "step",
        "unit": "ms",
        "value": 2.0,
        "p99": 4.0,
        "n": 3,
    }


@pytest.mark.parametrize(
    ("unit", "value", "message"),
    [
        ("seconds", 1, "unit must be one of ms"),
        ("ms", math.nan, "value must be finite"),
        ("ms", math.inf, "value must be finite"),
        ("ms", None, "value must be finite"),
        ("ms", -1, "not negative"),
        ("rate", 1.01, "must be at most 1"),
    ],
)
def test_row_refuses(unit, value, message):
    with pytest.raises(ValueError, match=message):
        record.row("demo", "exact", "step", unit, value)


def test_row_refuses_a_reference_without_source():
    with pytest.raises(ValueError, match="value and source"):
        record.row("paper", "exact", "step", "ms", 1, reference={"value": 2})


def test_time_calls_leaves_the_warm_up_out():
    calls = []
    times_ms = record.time_calls(lambda: calls.append(None), repeats=5, warmup=2)
    assert len(calls) == 7
    assert len(times_ms) == 5
    assert all(time_ms >= 0 for time_ms in times_ms)


def test_quantiles_are_what_row_takes():
    stats = record.quantiles(range(101))
    assert stats == {"value": 50.0, "p20": 20.0, "p80": 80.0, "p99": 99.0, "n": 101}
    assert record.row("demo", "exact", "step", "ms", **stats)["p80"] == 80.0


def test_write_replaces_the_file_and_states_where_it_was_measured(tmp_path):
    first = [record.row("demo", "exact", "recall", "rate", 0.5)]
    second = [record.row("demo", "exact", "recall", "rate", 0.25)]
    record.write("toy", first, machine="cpu", results=tmp_path)
    path = record.write("toy", second, machine="cpu", results=tmp_path)

    assert path == tmp_path / "cpu" / "toy.json"
    assert [entry.name for entry in path.parent.iterdir()] == ["toy.json"]
    content = json.loads(path.read_text())
    assert content["benchmark"] == "toy"
    assert content["rows"] == second
    assert content["machine"]["cpu"]
    assert content["machine"]["cores"] >= 1
    assert {"python", "torch", "numpy"} <= content["versions"].keys()
    assert {"command", "commit", "date"} <= content.keys()


def test_write_refuses_no_rows_and_the_same_row_twice(tmp_path):
    with pytest.raises(ValueError, match="at least one row"):
        record.write("toy", [], results=tmp_path)
    entry = record.row("demo", "exact", "recall", "rate", 0.5)
    with pytest.raises(ValueError, match="more than once"):
        record.write("toy", [entry, entry], results=tmp_path)


def test_kept_rows_are_those_of_other_cases_at_this_commit(tmp_path, monkeypatch):
    monkeypatch.setattr(record, "machine_name", lambda: "cpu")
    monkeypatch.setattr(record, "git_commit", lambda: "a")
    assert record.kept_rows("speed", {"demo"}, tmp_path) == []
    rows = [record.row(case, "exact", "step", "ms", 1) for case in ("demo", "paper")]
    record.write("speed", rows, results=tmp_path)
    assert record.kept_rows("speed", {"demo"}, tmp_path) == rows[1:]
    monkeypatch.setattr(record, "git_commit", lambda: "b")
    assert record.kept_rows("speed", {"demo", "paper"}, tmp_path) == []
    with pytest.raises(ValueError, match="measured at commit a, now at b"):
        record.kept_rows("speed", {"demo"}, tmp_path)
