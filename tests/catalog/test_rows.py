"""Rows through every format and back."""

import datetime as dt
import functools

import pyarrow as pa
import pytest

from grace.catalog import Schema, iter_rows, read_catalog, write_rows
from grace.catalog.batches import BATCH_ROWS
from grace.errors import CatalogError

ROWS = [
    {"ad_id": "a", "sid": [1, 2], "rules": {"age": {"min": 3}}, "title": "x"},
    {"ad_id": "é", "sid": [0, 2], "rules": {"age": {"min": 4}}, "title": None},
]


def nested(depth: int) -> object:
    return functools.reduce(lambda inner, _: [inner], range(depth), 1)


@pytest.mark.parametrize("suffix", [".parquet", ".jsonl"])
def test_rows_survive_a_file(tmp_path, suffix):
    write_rows(tmp_path / f"rows{suffix}", iter(ROWS))
    assert list(iter_rows(tmp_path / f"rows{suffix}")) == list(enumerate(ROWS, start=1))
    assert [p.name for p in tmp_path.iterdir()] == [f"rows{suffix}"]


def test_a_table_and_its_columns():
    table = pa.Table.from_pylist(ROWS)
    assert list(iter_rows(table, columns=["title", "none"])) == [
        (1, {"title": "x"}),
        (2, {"title": None}),
    ]


def test_lines_are_numbered_as_an_editor_does(tmp_path):
    (tmp_path / "rows.jsonl").write_text('{"a": 1}\n\n  \n{"a": 2}')
    assert list(iter_rows(tmp_path / "rows.jsonl")) == [(1, {"a": 1}), (4, {"a": 2})]


def test_nanoseconds_round_up_so_that_windows_stay_exact():
    times = pa.array([1_000, 1_001, None], pa.timestamp("ns", tz="UTC"))
    epoch = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
    micro = dt.timedelta(microseconds=1)
    rows = [row["start"] for _, row in iter_rows(pa.table({"start": times}))]
    assert rows == [epoch + micro, epoch + 2 * micro, None]


def test_a_failing_writer_leaves_the_old_file(tmp_path):
    path = tmp_path / "rows.jsonl"
    write_rows(path, ROWS)
    before = path.read_bytes()

    def rows():
        yield ROWS[0]
        raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        write_rows(path, rows())
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("name", "rows", "message"),
    [
        ("rows.csv", ROWS, "ending in .parquet or .jsonl"),
        ("rows.parquet", [], "no rows"),
        ("rows.parquet", [{"a": 1}, {"a": [2]}], "do not share column types"),
        ("rows.parquet", [{}, {}], "the rows have no columns"),
        ("rows.parquet", [{"a": 1}, {"b": {"c": [10**30]}}], r"row 2, b\.c\[0\]: .*64-bit .*10000"),
        (
            "rows.parquet",
            [{"a": {"b": ["x"]}}, {"a": {"b": ["\ud800"]}}],
            r"row 2, a\.b\[0\]: .*UTF-8",
        ),
        ("rows.parquet", [{"a": 1, "\ud800": 2}], r"row 1, \\ud800: .*UTF-8"),
        ("rows.parquet", [{"a": b"x"}, {"a": "x"}], "row 2, a: would come out as b'x' instead"),
        ("rows.parquet", [{"a": 1}] * BATCH_ROWS + [{"a": "x"}], "do not share column types"),
        ("rows.parquet", [{"a": 2**60 + 1}] * BATCH_ROWS + [{"a": 0.5}], "do not share column"),
        ("rows.parquet", [{"a": nested(5000)}], "rows 1-1 are nested too deeply"),
        ("rows.parquet", [{"a": 1}, {"a": 2, 5: 6}], "5: .*rows do not share column types"),
        ("rows.jsonl", [{"a": nested(100_000)}], "row 1: JSON cannot hold this row"),
        ("rows.jsonl", [{"a": object()}], "JSON cannot hold"),
        ("rows.jsonl", [{"a": 1}, {"a": {"b": "\ud800"}}], r"row 2, a\.b: .*UTF-8"),
        ("rows.jsonl", [{"a": 10**5000}], "row 1: JSON cannot hold this row"),
    ],
)
def test_what_cannot_be_written_is_refused(tmp_path, name, rows, message):
    with pytest.raises(CatalogError, match=message):
        write_rows(tmp_path / name, rows)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("before", [1, BATCH_ROWS, 2 * BATCH_ROWS + 3])
def test_a_column_or_key_that_comes_late_is_kept(tmp_path, before):
    early = {"ad_id": "a", "rules": {"age": {"min": 3}}}
    late = {
        "ad_id": "b",
        "rules": {"age": {"max": 7.5}, "country": {"include": ["NO"]}},
        "tags": [{"x": 1}],
    }
    path = tmp_path / "rows.parquet"
    write_rows(path, iter([early] * before + [late, {"ad_id": "c", "tags": [{"y": {}}]}]))
    rows = [row for _, row in iter_rows(path)]
    age = {"min": 3, "max": None}
    assert (
        rows[:before]
        == [{"ad_id": "a", "rules": {"age": age, "country": None}, "tags": None}] * before
    )
    assert rows[before:] == [
        {
            "ad_id": "b",
            "rules": {"age": {"min": None, "max": 7.5}, "country": {"include": ["NO"]}},
            "tags": [{"x": 1, "y": None}],
        },
        {"ad_id": "c", "rules": None, "tags": [{"x": None, "y": {"_": None}}]},
    ]


def test_objects_that_are_empty_everywhere_stay_objects(tmp_path):
    path = tmp_path / "rows.parquet"
    write_rows(path, [{"ad_id": 1, "rules": {}}, {"ad_id": 2, "rules": None}])
    assert [row["rules"] for _, row in iter_rows(path)] == [{"_": None}, None]
    schema = Schema.from_dict({"attributes": [{"name": "age", "kind": "range"}]})
    write_rows(path, [{"ad_id": 1, "sid": [1], "rules": {"age": {}}}])
    (rules,) = read_catalog(path, schema).rules
    assert len(rules) == 1


def test_a_column_given_twice_is_refused():
    table = pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["ad_id", "ad_id"])
    with pytest.raises(CatalogError, match="two columns called 'ad_id'"):
        list(iter_rows(table))


def test_nanoseconds_around_a_change_of_clocks_are_instants_all_the_same():
    hour = 3_600_000_000_000
    start = 1_762_061_400_000_000_000  # 2025-11-02 05:30Z: 01:30 in New York, twice
    times = pa.array([start, start + hour, start + 1], pa.timestamp("ns", tz="America/New_York"))
    rows = [row["start"].astimezone(dt.UTC) for _, row in iter_rows(pa.table({"start": times}))]
    first = dt.datetime(2025, 11, 2, 5, 30, tzinfo=dt.UTC)
    assert rows == [first, first + dt.timedelta(hours=1), first + dt.timedelta(microseconds=1)]


def test_a_table_without_the_wanted_columns_still_has_its_rows():
    table = pa.table({"Ad_ID": [1, 2]})
    assert list(iter_rows(table, columns=["ad_id"])) == [(1, {}), (2, {})]


def test_a_key_given_twice_is_refused(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"a": 1}\n{"rules": {"age": {"min": 18}, "age": {}}}\n')
    with pytest.raises(CatalogError, match=r"row 2: .*the key 'age' is given twice"):
        list(iter_rows(path))
