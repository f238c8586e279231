"""Catalogue and schema files that are torn, foreign, empty or wrong: a clear line, exit code 2."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from harness import build_rows, cli
from test_faults_rows import SCHEMA, YAML, build_by_cli, check_nothing_left, good_rows, write

import grace


@pytest.fixture
def parquet(tmp_path: Path) -> Path:
    rows = [{"ad_id": row["ad_id"], "sid": row["sid"]} for row in good_rows(2000)]
    path = tmp_path / "catalog.parquet"
    pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=500)
    return path


def check_refused(catalog: Path, *words: str, schema: str = YAML) -> None:
    """`grace index build` refuses, into a new DIR and over an old version, and leaves no trace."""
    folder = catalog.parent
    (folder / "schema.yaml").write_text(schema)
    build_by_cli(catalog, folder / "schema.yaml", folder / "fresh").check_refused(*words)
    check_nothing_left(folder / "fresh")
    old = folder / "old"
    build_rows(good_rows(10), SCHEMA, old)
    before = {path: path.read_bytes() for path in old.rglob("*") if path.is_file()}
    build_by_cli(catalog, folder / "schema.yaml", old).check_refused(*words)
    after = {path: path.read_bytes() for path in old.rglob("*") if path.is_file()}
    assert {path: data for path, data in after.items() if "lock" not in path.name} == {
        path: data for path, data in before.items() if "lock" not in path.name
    }
    assert grace.Index.open(old).num_ads == 10


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.9, 0.999])
def test_truncated_parquet(parquet: Path, share: float):
    data = parquet.read_bytes()
    parquet.write_bytes(data[: int(len(data) * share)])
    check_refused(parquet, "catalog.parquet")


@pytest.mark.parametrize("seed", range(8))
def test_bit_flipped_parquet(parquet: Path, seed: int, tmp_path: Path):
    """A flip is refused or, where Parquet cannot tell, read as a valid catalogue; never a crash."""
    data, rng = bytearray(parquet.read_bytes()), random.Random(seed)
    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    parquet.write_bytes(data)
    (tmp_path / "schema.yaml").write_text(YAML)
    outcome = build_by_cli(parquet, tmp_path / "schema.yaml", tmp_path / "index")
    if outcome.code == 0:
        assert grace.Index.open(tmp_path / "index").num_ads == 2000
    else:
        outcome.check_refused()
        check_nothing_left(tmp_path / "index")


def test_bit_flipped_parquet_footer(parquet: Path):
    data = bytearray(parquet.read_bytes())
    for at in (-1, -3, -6):
        data[at] ^= 0x10
    parquet.write_bytes(data)
    check_refused(parquet, "catalog.parquet")


@pytest.mark.parametrize(
    "content", [b"", b"\n \n\n", b'{"ad_id": 1, "sid": [0, 1]}\n' * 3, b"PAR1PAR1"]
)
def test_not_parquet(content: bytes, tmp_path: Path):
    (tmp_path / "catalog.parquet").write_bytes(content)
    check_refused(tmp_path / "catalog.parquet", "catalog.parquet")


def test_parquet_named_jsonl(parquet: Path):
    check_refused(parquet.rename(parquet.with_suffix(".jsonl")))


@pytest.mark.parametrize("content", [b"", b"\n", b" \n \n"])
def test_empty_json_lines(content: bytes, tmp_path: Path):
    (tmp_path / "catalog.jsonl").write_bytes(content)
    check_refused(tmp_path / "catalog.jsonl")


def test_parquet_without_rows(tmp_path: Path):
    kind = pa.schema([("ad_id", pa.int64()), ("sid", pa.list_(pa.int32()))])
    pq.write_table(pa.Table.from_pylist([], kind), tmp_path / "catalog.parquet")
    check_refused(tmp_path / "catalog.parquet")


@pytest.mark.parametrize(
    "line", ["{", "[1, 2]", '"ad"', "5", "null", '{"ad_id": 1,}', '{"ad_id": 56, "sid": [0']
)
def test_one_line_is_no_object(line: str, tmp_path: Path):
    lines = [json.dumps(row) for row in good_rows()]
    lines[56] = line
    (tmp_path / "catalog.jsonl").write_text("\n".join(lines))
    check_refused(tmp_path / "catalog.jsonl", "57")


def test_torn_last_line(tmp_path: Path):
    catalog, _ = write(tmp_path, good_rows())
    catalog.write_bytes(catalog.read_bytes()[:-20])
    check_refused(catalog, "100")


def test_not_utf8(tmp_path: Path):
    lines = [json.dumps(row).encode() for row in good_rows()]
    lines[56] = b'{"ad_id": 56, "sid": [0, 1], "title": "\xff\xfe"}'
    (tmp_path / "catalog.jsonl").write_bytes(b"\n".join(lines))
    check_refused(tmp_path / "catalog.jsonl", "57")


@pytest.mark.parametrize("missing", ["ad_id", "sid"])
def test_parquet_of_another_schema(missing: str, tmp_path: Path):
    rows = [{"ad_id": n, "sid": [n, n]} for n in range(5)]
    table = pa.Table.from_pylist(rows).drop_columns([missing])
    pq.write_table(table, tmp_path / "catalog.parquet")
    check_refused(tmp_path / "catalog.parquet", missing)


def test_missing_file_folder_and_unknown_suffix(tmp_path: Path):
    check_refused(tmp_path / "absent.parquet", "absent.parquet")
    (tmp_path / "folder.parquet").mkdir()
    check_refused(tmp_path / "folder.parquet", "folder.parquet")
    (tmp_path / "catalog.csv").write_text("ad_id,sid\n1,0\n")
    check_refused(tmp_path / "catalog.csv", "catalog.csv")


SCHEMAS = {
    "empty": "",
    "no yaml": "attributes: [",
    "a list": "- country",
    "no attributes": "name: x",
    "attributes no list": "attributes: country",
    "attribute no object": "attributes: [country]",
    "no name": "attributes: [{kind: range}]",
    "no kind": "attributes: [{name: country}]",
    "unknown kind": "attributes: [{name: country, kind: colour}]",
    "unknown key": "attributes: [{name: country, kind: set, colour: red}]",
    "name twice": "attributes: [{name: age, kind: range}, {name: age, kind: set}]",
    "name no text": "attributes: [{name: [1], kind: range}]",
    "values no list": "attributes: [{name: country, kind: categorical, values: US}]",
    "values empty": "attributes: [{name: country, kind: categorical, values: []}]",
    "values twice": "attributes: [{name: country, kind: categorical, values: [US, US]}]",
    "binary": "\0\1\2",
}


@pytest.mark.parametrize("text", SCHEMAS.values(), ids=SCHEMAS.keys())
def test_bad_schema(text: str, tmp_path: Path):
    catalog, _ = write(tmp_path, good_rows())
    check_refused(catalog, "schema", schema=text)


def test_missing_schema(tmp_path: Path):
    catalog, _ = write(tmp_path, good_rows())
    outcome = build_by_cli(catalog, tmp_path / "absent.yaml", tmp_path / "index")
    outcome.check_refused("absent.yaml")


def test_no_command_leaves_a_traceback():
    for arguments in ((), ("index",), ("index", "build"), ("nonsense",), ("retrieve", "--index")):
        outcome = cli(*arguments)
        assert "Traceback" not in outcome.out + outcome.err
        assert outcome.code in (0, 2)
