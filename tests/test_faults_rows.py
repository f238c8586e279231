"""One bad row among many: the message names the row, the field and what came; nothing is built."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from harness import build_rows, cli

from grace.errors import CatalogError

SCHEMA = [
    {"name": "country", "kind": "categorical"},
    {"name": "gender", "kind": "categorical", "values": ["female", "male"]},
    {"name": "age", "kind": "range"},
    {"name": "places", "kind": "set"},
]
YAML = "attributes:\n" + "".join(f"  - {json.dumps(attribute)}\n" for attribute in SCHEMA)
BAD_ROW = 57
MISSING = object()


def good_rows(count: int = 100) -> list[dict]:
    return [
        {
            "ad_id": number,
            "sid": [number % 7, number % 5],
            "rules": {"country": {"include": ["US"]}, "age": {"min": 18, "max": 30}},
            "start": "2026-03-01T12:00:00Z",
            "paused": False,
        }
        for number in range(count)
    ]


def with_bad_row(change: dict) -> list[dict]:
    rows = good_rows()
    bad = rows[BAD_ROW - 1] | change
    rows[BAD_ROW - 1] = {key: value for key, value in bad.items() if value is not MISSING}
    return rows


def write(folder: Path, rows: list[dict], name: str = "catalog.jsonl") -> tuple[Path, Path]:
    """A JSON Lines catalogue and its schema."""
    catalog, schema = folder / name, folder / "schema.yaml"
    catalog.write_text("".join(json.dumps(row) + "\n" for row in rows))
    schema.write_text(YAML)
    return catalog, schema


def build_by_cli(catalog: Path, schema: Path, out: Path):
    return cli("index", "build", "--catalog", catalog, "--schema", schema, "--out", out)


def check_nothing_left(out: Path) -> None:
    """No version, no CURRENT, no temporary file; a lock may stay."""
    files = [path for path in out.rglob("*") if path.is_file()] if out.exists() else []
    assert [path for path in files if "lock" not in path.name] == []
    assert list(out.glob("versions/*")) == []


SIDS = [
    (MISSING, "sid"),
    (None, "sid"),
    ([], "sid"),
    ([0], "sid"),
    ([0, 1, 2], "sid"),
    ([0, -1], "sid"),
    ([0, 2**31], "sid"),
    ([0, 2**63], "sid"),
    ([0, True], "sid"),
    ([0, 1.5], "sid"),
    ([0, 1.0], "sid"),
    ([0, "1"], "sid"),
    ([0, None], "sid"),
    ("01", "sid"),
    (7, "sid"),
    ({"0": 1}, "sid"),
]
IDS = [MISSING, None, True, 1.5, 2**63, -(2**63) - 1, [1], {"id": 1}]
RULES = [
    ("US", "rules"),
    (["US"], "rules"),
    ({"city": {"include": ["x"]}}, "rules.city"),
    ({"country": "US"}, "rules.country"),
    ({"country": ["US"]}, "rules.country"),
    ({"country": {"include": []}}, "rules.country.include"),
    ({"country": {"include": "US"}}, "rules.country.include"),
    ({"country": {"include": [None]}}, "rules.country.include"),
    ({"country": {"include": [["US"]]}}, "rules.country.include"),
    ({"country": {"includes": ["US"]}}, "rules.country"),
    ({"country": {"min": 1}}, "rules.country"),
    ({"country": {"include": ["US"], "max": 3}}, "rules.country"),
    ({"gender": {"include": ["robot"]}}, "rules.gender"),
    ({"gender": {"exclude": ["robot"]}}, "rules.gender"),
    ({"places": {"include": []}}, "rules.places.include"),
    ({"places": {"include": {"a": 1}}}, "rules.places.include"),
    ({"age": {"min": 5, "max": 3}}, "rules.age"),
    ({"age": {"min": "5"}}, "rules.age.min"),
    ({"age": {"max": True}}, "rules.age.max"),
    ({"age": {"min": float("nan")}}, "rules.age.min"),
    ({"age": {"min": [5]}}, "rules.age.min"),
    ({"age": {"include": ["5"]}}, "rules.age"),
    ({"age": {"minimum": 5}}, "rules.age"),
]
TIMES = ["yesterday", "2026-13-01T00:00:00Z", "2026-02-30T00:00:00Z", 5, True, "", ["2026"]]
BAD = [
    *(("sid", {"sid": sid}) for sid, _ in SIDS),
    *(("ad_id", {"ad_id": ad_id}) for ad_id in IDS),
    *((field, {"rules": rules}) for rules, field in RULES),
    *(("start", {"start": time}) for time in TIMES),
    *(("end", {"end": time}) for time in TIMES),
    *(("paused", {"paused": paused}) for paused in ("yes", 2, [True])),
]


def name_of(value) -> str:
    return str(value).replace(str(MISSING), "missing")[:50]


@pytest.mark.parametrize(("field", "change"), BAD, ids=name_of)
def test_bad_row_of_a_table_in_memory(field: str, change: dict):
    with pytest.raises(CatalogError) as refused:
        build_rows(with_bad_row(change), SCHEMA)
    assert refused.value.row == BAD_ROW
    assert refused.value.field is not None
    assert refused.value.field.startswith(field)
    assert f"row {BAD_ROW}" in str(refused.value)


@pytest.mark.parametrize(("field", "change"), BAD, ids=name_of)
def test_bad_row_of_a_file(field: str, change: dict, tmp_path: Path):
    outcome = build_by_cli(*write(tmp_path, with_bad_row(change)), tmp_path / "index")
    outcome.check_refused(str(BAD_ROW), field)
    check_nothing_left(tmp_path / "index")


@pytest.mark.parametrize("sid", [[0, -1], [0, 2**31], [0], [0, None], None])
def test_bad_sid_in_parquet(sid, tmp_path: Path):
    """The same from typed columns, where no JSON stands in between."""
    rows = [{"ad_id": row["ad_id"], "sid": row["sid"]} for row in with_bad_row({"sid": sid})]
    kind = pa.schema([("ad_id", pa.int64()), ("sid", pa.list_(pa.int64()))])
    pq.write_table(
        pa.Table.from_pylist(rows, kind), tmp_path / "catalog.parquet", row_group_size=16
    )
    (tmp_path / "schema.yaml").write_text(YAML)
    outcome = build_by_cli(
        tmp_path / "catalog.parquet", tmp_path / "schema.yaml", tmp_path / "index"
    )
    outcome.check_refused(str(BAD_ROW), "sid")
    check_nothing_left(tmp_path / "index")


@pytest.mark.parametrize("column", ["float", "text", "bool"])
def test_wrong_column_types_in_parquet(column: str, tmp_path: Path):
    token = {"float": 1.0, "text": "1", "bool": True}[column]
    table = pa.Table.from_pylist([{"ad_id": n, "sid": [token, token]} for n in range(3)])
    pq.write_table(table, tmp_path / "catalog.parquet")
    (tmp_path / "schema.yaml").write_text(YAML)
    outcome = build_by_cli(
        tmp_path / "catalog.parquet", tmp_path / "schema.yaml", tmp_path / "index"
    )
    outcome.check_refused("sid")
    check_nothing_left(tmp_path / "index")


@pytest.mark.parametrize(
    ("first", "second"), [(2, 98), (1, 100), (49, 50)], ids=["apart", "ends", "side by side"]
)
@pytest.mark.parametrize("kind", [int, str])
def test_duplicate_ids_name_both_rows(kind, first: int, second: int, tmp_path: Path):
    rows = [row | {"ad_id": kind(row["ad_id"])} for row in good_rows()]
    rows[second - 1]["ad_id"] = rows[first - 1]["ad_id"]
    outcome = build_by_cli(*write(tmp_path, rows), tmp_path / "index")
    outcome.check_refused("ad_id", str(first), str(second))
    check_nothing_left(tmp_path / "index")
    with pytest.raises(CatalogError, match=f"{first}.*{second}|{second}.*{first}"):
        build_rows(rows, SCHEMA)


@pytest.mark.parametrize(("kind", "odd"), [(int, "57"), (str, 57)])
def test_mixed_id_types(kind, odd, tmp_path: Path):
    rows = [row | {"ad_id": kind(row["ad_id"])} for row in good_rows()]
    rows[BAD_ROW - 1]["ad_id"] = odd
    outcome = build_by_cli(*write(tmp_path, rows), tmp_path / "index")
    outcome.check_refused("ad_id", str(BAD_ROW))
    check_nothing_left(tmp_path / "index")


def test_largest_token_and_id_are_legal():
    """The caps of the format are refused one past the end, not before it."""
    rows = [{"ad_id": 2**63 - 1, "sid": [2**31 - 2, 0]}, {"ad_id": -(2**63), "sid": [0, 2**31 - 2]}]
    index = build_rows(rows, SCHEMA)
    assert index.vocab_size == 2**31 - 1
    assert index.sids.tolist() == [[0, 2**31 - 2], [2**31 - 2, 0]]
    assert index.find_ads([2**63 - 1, -(2**63)]).tolist() == [1, 0]
    with pytest.raises(CatalogError, match="sid"):
        build_rows([{"ad_id": 1, "sid": [0] * 33}], SCHEMA)


def test_first_row_sets_the_length_and_a_bad_first_row_is_named(tmp_path: Path):
    rows = good_rows()
    rows[0] = rows[0] | {"sid": [0, -4]}
    outcome = build_by_cli(*write(tmp_path, rows), tmp_path / "index")
    outcome.check_refused("row 1", "sid", "-4")
