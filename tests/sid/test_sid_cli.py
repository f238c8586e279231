"""`grace sid fit` on the command line."""

from __future__ import annotations

import json

import pytest
from sid_rows import item_rows, write_jsonl
from typer.testing import CliRunner

from grace.cli import app
from grace.sid import load_codebooks


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_jsonl(tmp_path / "catalog.jsonl", item_rows(200))
    return tmp_path


def run(*arguments: str):
    return CliRunner().invoke(app, ["sid", "fit", "--catalog", "catalog.jsonl", *arguments])


def test_tables_report_and_codebooks(folder):
    result = run(
        "--out", "out.parquet", "--codes", "16", "--levels", "2", "--text", "title",
        "--report", "report.json", "--codebooks", "books.safetensors",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    assert "Codes per level (of 16)" in result.output
    assert "collision rate" in result.output
    assert "items without text" in result.output
    report = json.loads((folder / "report.json").read_text())
    assert (report["items"], report["codes"], len(report["levels"])) == (200, 16, 2)
    assert len(load_codebooks(folder / "books.safetensors")) == 2
    assert (folder / "out.parquet").exists()


def test_json_alone_on_standard_output(folder):
    result = run("--out", "out.jsonl", "--codes", "8", "--collisions", "resolve", "--json")
    report = json.loads(result.stdout)
    assert report["collisions"] == "resolve"
    assert report["distinct_sids"] == 200


def test_behaviour_and_fewer_items_than_codes(folder):
    rows = [{"items": [f"ad{(n + k) % 200}" for k in range(6)]} for n in range(200)]
    write_jsonl(folder / "behaviour.jsonl", rows)
    result = run("--out", "out.jsonl", "--behaviour", "behaviour.jsonl", "--codes", "512")
    assert result.exit_code == 0, result.output
    assert "Level 1 needs 200 of 512 codes" in result.output
    assert "unknown items in histories" in result.output


def test_a_collapse_exits_with_2_and_writes_nothing(folder):
    write_jsonl(folder / "catalog.jsonl", [{"ad_id": n, "title": "same"} for n in range(50)])
    before = sorted(folder.iterdir())
    result = run("--out", "out.jsonl", "--report", "report.json", "--codebooks", "b.safetensors")
    assert result.exit_code == 2
    assert "all 50 items have the same vector" in result.stderr
    assert "Traceback" not in result.output
    assert sorted(folder.iterdir()) == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--out", "out.csv"], "expected a name ending in .parquet or .jsonl"),
        (["--out", "no/out.jsonl"], "there is no folder no"),
        (["--out", "out.jsonl", "--report", "no/report.json"], "there is no folder no"),
        (["--out", "."], "out: . is a directory; name a file"),
        (["--out", "o.jsonl", "--report", "./o.jsonl"], "report: o.jsonl is the file of out too"),
        (["--out", "o.jsonl", "--codebooks", "o.jsonl"], "codebooks: o.jsonl is the file of out"),
        (["--out", "o.jsonl", "--report", "catalog.jsonl"], "is the file of catalog too"),
        (["--out", "o.jsonl", "--codebooks", "catalog.jsonl"], "is the file of catalog too"),
        (["--out", "o.jsonl", "--codebooks", "b", "--report", "b"], "is the file of codebooks too"),
        (["--out", "o.jsonl", "--behaviour", "o.jsonl"], "out: o.jsonl is the file of behaviour"),
        (["--out", "out.jsonl", "--behaviour", "none.jsonl"], "none.jsonl: no such file"),
        (["--out", "out.jsonl", "--text", "name"], "name: no row has this column"),
        (["--out", "out.jsonl", "--codes", "1"], "--codes"),
        (["--out", "out.jsonl", "--collisions", "drop"], "--collisions"),
    ],
)
def test_wrong_options_exit_with_2_and_write_nothing(folder, arguments, message):
    result = run(*arguments)
    assert result.exit_code == 2
    assert message in result.stderr
    assert [path.name for path in folder.iterdir()] == ["catalog.jsonl"]
