"""`grace index watch | versions | rollback`: what they print, and what they refuse in one line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from harness import build_rows, cli
from test_faults_rows import SCHEMA, YAML, good_rows

import grace


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A schema and two deltas."""
    (tmp_path / "schema.yaml").write_text(YAML)
    (tmp_path / "changes").mkdir()
    put(tmp_path, "001.jsonl", *good_rows(3))
    put(tmp_path, "002.jsonl", {"ad_id": 1, "removed": True})
    return tmp_path


def put(folder: Path, name: str, *rows: dict) -> None:
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (folder / "changes" / name).write_text(text)


def watch(folder: Path, *options: str | Path):
    where = ("--index", folder / "index", "--changes", folder / "changes", "--once")
    return cli("index", "watch", *where, *options)


def test_from_nothing_to_a_rollback(folder: Path):
    watch(folder).check_refused("holds no index yet", "--schema")
    first = watch(folder, "--schema", folder / "schema.yaml")
    assert first.code == 0, first.err
    version = grace.Index.open(folder / "index").version
    assert first.out == (
        f"version {version}: 2 deltas to 002.jsonl, 3 ads written, 1 removed; 2 ads on 2 SIDs\n"
    )
    put(folder, "003.jsonl", good_rows(4)[3])
    second = json.loads(watch(folder, "--json").out)
    assert (second["watermark"], second["ads"], second["changed"]) == ("003.jsonl", 3, 1)
    assert watch(folder).out == ""

    listed = json.loads(cli("index", "versions", "--index", folder / "index", "--json").out)
    assert [(v["version"], v["parent"], v["watermark"], v["current"]) for v in listed] == [
        (second["version"], version, "003.jsonl", True),
        (version, None, "002.jsonl", False),
    ]
    table = cli("index", "versions", "--index", folder / "index").out
    for word in (version, second["version"], "current", "003.jsonl", "parent"):
        assert word in table

    back = cli("index", "rollback", "--index", folder / "index")
    assert back.out == f"{folder / 'index'}: version {version}, watermark 002.jsonl\n"
    watch(folder).check_refused("rollback", "003.jsonl", "--resume")
    assert watch(folder, "--resume").code == 0
    again = cli("index", "rollback", "--index", folder / "index", "--to", version, "--json")
    assert json.loads(again.out)["action"] == "rollback"
    assert grace.Index.open(folder / "index").num_ads == 2


def test_a_bad_delta_is_named(folder: Path):
    watch(folder, "--schema", folder / "schema.yaml")
    put(folder, "003.jsonl", good_rows(1)[0] | {"rules": {"age": {"min": "x"}}})
    refused = watch(folder)
    refused.check_refused("003.jsonl", "row 1, rules.age.min", "mend it", "watermark 002.jsonl")
    assert grace.Index.open(folder / "index").num_ads == 2


def test_another_schema_is_refused(folder: Path):
    watch(folder, "--schema", folder / "schema.yaml")
    (folder / "other.yaml").write_text("attributes: [{name: city, kind: set}]")
    watch(folder, "--schema", folder / "other.yaml").check_refused("other.yaml", "differs")
    assert watch(folder, "--schema", folder / "schema.yaml").code == 0


def test_a_build_with_a_watermark(folder: Path):
    (folder / "catalog.jsonl").write_text((folder / "changes" / "001.jsonl").read_text())
    built = cli(
        *("index", "build", "--catalog", folder / "catalog.jsonl", "--schema"),
        *(folder / "schema.yaml", "--out", folder / "index", "--watermark", "001.jsonl"),
        *("--keep", "1"),
    )
    assert built.code == 0, built.err
    assert "1 deltas to 002.jsonl, 0 ads written, 1 removed" in watch(folder).out


@pytest.mark.parametrize("command", ["versions", "rollback"])
def test_no_index(folder: Path, command: str):
    cli("index", command, "--index", folder).check_refused("holds no index")
    cli("index", command, "--index", folder / "absent").check_refused("no such directory")
    assert sorted(path.name for path in folder.iterdir()) == ["changes", "schema.yaml"]


def test_rollback_to_an_unknown_version(folder: Path):
    index = build_rows(good_rows(2), SCHEMA, folder / "index")
    refused = cli("index", "rollback", "--index", folder / "index", "--to", "../versions")
    refused.check_refused("has no version '../versions'", index.version)


def test_info_counts_bids_that_are_off(folder: Path):
    index = build_rows(good_rows(3), SCHEMA, folder / "index")
    index.pause([0])
    index.bid_off([0, 1])
    info = json.loads(cli("index", "info", "--index", folder / "index", "--json").out)
    assert (info["paused_ads"], info["bid_off_ads"]) == (1, 2)
    table = cli("index", "info", "--index", folder / "index").out
    assert "(1 paused, 2 with their bid off)" in table
