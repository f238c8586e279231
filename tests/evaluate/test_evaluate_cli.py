"""`grace evaluate` from files to files."""

from __future__ import annotations

import json

import harness
import pytest

import grace.model.folder
from grace.catalog import write_rows


@pytest.fixture
def arguments(case, requests, tmp_path, monkeypatch):
    """Files of the case; the model directory stands for the case's generator."""
    harness.build(case, tmp_path / "index")
    write_rows(tmp_path / "requests.jsonl", requests)
    monkeypatch.setattr(grace.model.folder, "open_model", lambda directory: case.generator)
    return {
        "--index": tmp_path / "index",
        "--model": tmp_path / "model",
        "--requests": tmp_path / "requests.jsonl",
        "--out": tmp_path / "out",
    }


def run(arguments: dict, *more: str) -> harness.Outcome:
    return harness.cli("evaluate", *(word for pair in arguments.items() for word in pair), *more)


@pytest.mark.parametrize("matching", ["exact", "off"])
def test_a_wrong_precision_is_one_line(arguments, matching):
    """Also where only a mode is asked for that has none."""
    outcome = run(arguments, "--matching", matching, "--precision", "fp8")
    outcome.check_refused("precision must be one of auto, float32, bfloat16, float8, got 'fp8'")
    assert len(outcome.err.splitlines()) == 1


def test_tables_json_and_chart(arguments):
    outcome = run(
        arguments, "--matching", "exact", "--matching", "valid", "--plan", "1,4,8", "--k", "5"
    )
    assert outcome.code == 0, outcome.err
    out = arguments["--out"]
    assert sorted(path.name for path in out.iterdir()) == ["evaluation.json", "evaluation.png"]
    content = json.loads((out / "evaluation.json").read_text())
    assert list(content["modes"]) == ["exact", "valid"]
    assert content["plan"] == {"widths": [1, 4, 8], "num_sids": 8}
    assert content["modes"]["exact"]["decoding"]["eligible_sid_rate"]["value"] == 1
    assert "recall@5" in outcome.out
    assert "recall@10" not in outcome.out


def test_a_missing_target_is_refused_and_nothing_is_written(arguments, case):
    write_rows(arguments["--requests"], case.requests)
    run(arguments).check_refused("request 1: target: expected the id of the ad held out")
    assert list(arguments["--out"].iterdir()) == []


def test_a_missing_file_is_refused(arguments):
    arguments["--requests"].unlink()
    run(arguments).check_refused("no such file")


def test_a_wrong_device_and_absurd_numbers_are_refused_in_one_line(arguments):
    run(arguments, "--device", "foo").check_refused("device: cannot use 'foo'")
    assert not arguments["--out"].exists()
    for option in ("--k", "--fixed-ads", "--bucket"):
        run(arguments, option, "9" * 25).check_refused("expected integers from 1 to")
