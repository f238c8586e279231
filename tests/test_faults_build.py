"""Builds from unsorted, differently stored and large catalogues, into places good and bad."""

from __future__ import annotations

import json
import os
import random
from datetime import datetime
from pathlib import Path

import numpy as np
import oracle
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from harness import build, build_rows, check_case, cli
from strategies import SCHEMA, Case
from test_faults_index import version_files
from test_faults_rows import YAML

import grace

COUNTRY = [{"name": "country", "kind": "categorical"}]


def as_json(rows: list[dict]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def arrays(folder: Path) -> dict[str, bytes]:
    """The version's array files; the manifest may hold a date."""
    return {p.name: p.read_bytes() for p in version_files(folder) if p.suffix != ".json"}


@pytest.mark.parametrize("ids", ["int", "str"])
def test_unsorted_input_gives_the_same_bytes(ids: str, tmp_path: Path):
    case = Case(num_ads=2000, vocab=30, ids=ids, num_places=60)
    build(case, out=tmp_path / "0")
    for seed in (1, 2):
        rows = random.Random(seed).sample(case.ads, len(case.ads))
        build(case.where(rows=rows), out=tmp_path / str(seed))
        assert arrays(tmp_path / str(seed)) == arrays(tmp_path / "0")
    by_sid = sorted(case.ads, key=lambda row: (row["sid"], oracle.id_order(row["ad_id"])))
    build(case.where(rows=by_sid), out=tmp_path / "sorted")
    assert arrays(tmp_path / "sorted") == arrays(tmp_path / "0")


def test_all_sources_give_the_same_bytes(tmp_path: Path):
    """Dictionaries, a table in memory, JSON Lines and Parquet are one catalogue."""
    case = Case(num_ads=300, num_places=60)
    rows = [typed(row) for row in case.ads]
    build_rows(rows, SCHEMA, tmp_path / "rows")
    table = pa.Table.from_pylist(rows, arrow_schema())
    pq.write_table(table, tmp_path / "catalog.parquet", row_group_size=64)
    (tmp_path / "catalog.jsonl").write_text(as_json(rows))
    text = "attributes:\n" + "".join(f"  - {json.dumps(attribute)}\n" for attribute in SCHEMA)
    (tmp_path / "schema.yaml").write_text(text)
    sources = {"table": table} | {n: tmp_path / f"catalog.{n}" for n in ("jsonl", "parquet")}
    for name, source in sources.items():
        grace.build_index(source, tmp_path / "schema.yaml", out=tmp_path / name)
        assert arrays(tmp_path / name) == arrays(tmp_path / "rows"), name
    stamps = [(n, pa.timestamp("us", tz="UTC")) for n in ("start", "end")]
    for name, kind in stamps:
        column = pa.array([moment(row.get(name)) for row in rows], kind)
        table = table.set_column(table.schema.get_field_index(name), name, column)
    grace.build_index(table, tmp_path / "schema.yaml", out=tmp_path / "stamps")
    assert arrays(tmp_path / "stamps") == arrays(tmp_path / "rows")


def typed(row: dict) -> dict:
    """The same ad, with every value spelled as text so that a column can hold it."""
    rules = {}
    for name, rule in (row["rules"] or {}).items():
        rules[name] = {
            part: [oracle.spell(v) for v in value] if isinstance(value, list) else value
            for part, value in (rule or {}).items()
        }
        if name == "age":
            rules[name] = {part: float(v) for part, v in rules[name].items()}
    return row | {"rules": rules}


def moment(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)


def arrow_schema() -> pa.Schema:
    lists = pa.struct([("include", pa.list_(pa.string())), ("exclude", pa.list_(pa.string()))])
    ends = pa.struct([("min", pa.float64()), ("max", pa.float64())])
    rules = pa.struct([(a["name"], ends if a["kind"] == "range" else lists) for a in SCHEMA])
    return pa.schema(
        [
            ("ad_id", pa.int64()),
            ("sid", pa.list_(pa.int32())),
            ("rules", rules),
            ("start", pa.string()),
            ("end", pa.string()),
            ("paused", pa.bool_()),
        ]
    )


def test_reopened_index_answers_the_same(tmp_path: Path):
    case = Case(num_ads=500, vocab=9, ids="str", num_requests=6, width=33)
    built = build(case, out=tmp_path / "index")
    opened = grace.Index.open(tmp_path / "index")
    for matching in ("valid", "bitmask+bloom", "exact"):
        for index in (built, opened):
            check_case(case, index, matching)


def test_accessors(tmp_path: Path):
    """What the index says of itself is what the catalogue holds."""
    case = Case(num_ads=300, vocab=6, ids="str")
    index = build(case, out=tmp_path / "index")
    sids = sorted({tuple(row["sid"]) for row in case.ads})
    levels = [{p for p in oracle.valid_prefixes(case.ads) if len(p) == n} for n in range(4)]
    assert index.sids.tolist() == [list(sid) for sid in sids]
    assert (index.num_levels, index.num_sids, index.num_ads) == (3, len(sids), 300)
    assert index.vocab_size == max(map(max, sids)) + 1
    assert tuple(index.level_sizes) == tuple(map(len, levels))
    order = sorted(case.ads, key=lambda row: (row["sid"], oracle.id_order(row["ad_id"])))
    assert [index.ad_id(position) for position in range(300)] == [row["ad_id"] for row in order]
    assert [sids[sid] for sid in index.ad_sid] == [tuple(row["sid"]) for row in order]
    ids = [row["ad_id"] for row in order]
    assert index.find_ads([*ids, "absent"]).tolist() == [*range(300), -1]


@pytest.fixture
def catalog(tmp_path: Path) -> tuple[Path, Path]:
    (tmp_path / "catalog.jsonl").write_text(as_json([{"ad_id": n, "sid": [n]} for n in range(9)]))
    (tmp_path / "schema.yaml").write_text(YAML)
    return tmp_path / "catalog.jsonl", tmp_path / "schema.yaml"


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes where it may not")
def test_unwritable_out(catalog, tmp_path: Path):
    locked = tmp_path / "locked"
    locked.mkdir(mode=0o500)
    outcome = cli(
        "index", "build", "--catalog", catalog[0], "--schema", catalog[1], "--out", locked / "index"
    )
    outcome.check_refused("locked")


def test_out_is_a_file(catalog, tmp_path: Path):
    (tmp_path / "taken").write_text("mine")
    outcome = cli(
        "index",
        "build",
        "--catalog",
        catalog[0],
        "--schema",
        catalog[1],
        "--out",
        tmp_path / "taken",
    )
    outcome.check_refused("taken")
    assert (tmp_path / "taken").read_text() == "mine"


def test_out_is_a_foreign_folder(catalog, tmp_path: Path):
    """A folder with other people's files is no place for an index, or keeps them untouched."""
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "mine.txt").write_text("mine")
    outcome = cli(
        "index",
        "build",
        "--catalog",
        catalog[0],
        "--schema",
        catalog[1],
        "--out",
        tmp_path / "taken",
    )
    assert "Traceback" not in outcome.err
    assert (tmp_path / "taken" / "mine.txt").read_text() == "mine"


def test_a_million_rows(tmp_path: Path):
    """10^6 rows from Parquet, and one bad row at the end of them."""
    rng, count = np.random.default_rng(0), 1_000_000
    tokens = rng.integers(0, 256, size=(count, 4), dtype=np.int32)
    write_million(tmp_path / "good.parquet", tokens)
    (tmp_path / "schema.yaml").write_text(YAML)
    index = grace.build_index(
        tmp_path / "good.parquet", tmp_path / "schema.yaml", out=tmp_path / "index"
    )
    assert (index.num_ads, index.num_levels) == (count, 4)
    assert index.num_sids == len(np.unique(tokens, axis=0))
    tokens[-2, 3] = -1
    write_million(tmp_path / "bad.parquet", tokens)
    outcome = cli(
        *("index", "build", "--catalog", tmp_path / "bad.parquet"),
        *("--schema", tmp_path / "schema.yaml", "--out", tmp_path / "index"),
    )
    outcome.check_refused("999999", "sid", "-1")
    assert grace.Index.open(tmp_path / "index").version == index.version


def write_million(path: Path, tokens: np.ndarray) -> None:
    count, levels = tokens.shape
    offsets = pa.array(np.arange(0, count * levels + 1, levels, dtype=np.int32))
    sids = pa.ListArray.from_arrays(offsets, pa.array(tokens.ravel()))
    pq.write_table(pa.table({"ad_id": np.arange(count), "sid": sids}), path)
