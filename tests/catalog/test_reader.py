"""Catalogues read by column are what they are row by row; errors name the first wrong row."""

from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from random_tables import SCHEMA, RandomTable, ads_of, rules_of

from grace.catalog import Schema, iter_rows, read_catalog, read_changes
from grace.catalog.row_checks import RowChecker
from grace.errors import CatalogError

WHOLE = [{"ad_id": n, "sid": [n % 3, 1]} for n in range(1, 51)]
BARE = Schema(())
SIDS = pa.list_(pa.int32())


def outcome(read, source, **options):
    """What is read, in words, or the error's."""
    try:
        found = read(source, SCHEMA, **options)
    except CatalogError as error:
        return str(error)
    if read is read_catalog:
        check_tables(found)
        return ads_of(found)
    check_tables(found.ads)
    return ads_of(found.ads), found.removed.to_pylist(), found.removed.type


def check_tables(catalog) -> None:
    """Every distinct part once, and nothing that no ad has."""
    num_ads = len(catalog.ad_ids)
    assert catalog.sids.dtype == np.int32
    assert catalog.sids.flags.c_contiguous
    assert (catalog.ad_signatures.shape, catalog.ad_signatures.dtype) == ((num_ads,), np.int32)
    assert (catalog.paused.shape, catalog.paused.dtype) == ((num_ads,), np.bool_)
    signatures = catalog.signatures
    assert signatures.shape[1] == len(catalog.schema.attributes) + 1
    assert len(np.unique(signatures, axis=0)) == len(signatures)
    assert set(catalog.ad_signatures.tolist()) == set(range(len(signatures)))
    for column, table in zip(signatures.T, catalog.rules, strict=False):
        assert set(column.tolist()) | {0} == set(range(len(table)))
        rules = rules_of(table)
        assert len(set(rules)) == len(rules)
        assert rules[0] in ((frozenset(), frozenset()), (-np.inf, np.inf))
        if hasattr(table, "values"):
            values = table.values.to_pylist()
            assert sorted(set(values)) == sorted(values)
            named = {*table.include_values.tolist(), *table.exclude_values.tolist()}
            assert named == set(range(len(values)))
    assert set(signatures[:, -1].tolist()) | {0} == set(range(len(catalog.windows)))
    assert len(np.unique(catalog.windows, axis=0)) == len(catalog.windows)


@given(
    seed=st.integers(0, 1 << 30),
    faults=st.sampled_from((0.0, 0.0, 0.01, 0.1)),
    odd=st.sampled_from((0.0, 0.0, 0.2)),
    workers=st.sampled_from((1, 2, 3)),
    read=st.sampled_from((read_catalog, read_changes)),
)
def test_columns_say_what_rows_say(tmp_path_factory, seed, faults, odd, workers, read):
    """Whatever the types, faults, row groups and threads: the same ads, or the same error."""
    table = RandomTable(seed, faults, odd, removals=read is read_changes).table()
    want = outcome(read, [row for _, row in iter_rows(table)])
    assert outcome(read, table, workers=workers) == want
    path = tmp_path_factory.mktemp("rows") / "catalog.parquet"
    try:
        pq.write_table(table, path, row_group_size=7)
    except pa.ArrowNotImplementedError:
        return  # some types Parquet does not know
    want = outcome(read, [row for _, row in iter_rows(path)])
    with patch("grace.catalog.batches.BATCH_ROWS", 5):
        assert outcome(read, path, workers=workers) == want


@given(seed=st.integers(0, 1 << 30))
def test_plain_columns_need_no_look_at_rows(seed):
    table = RandomTable(seed, faults=0.0, odd=0.0).table()
    with patch.object(RowChecker, "add", side_effect=AssertionError("looked at a row")):
        assert isinstance(outcome(read_catalog, table), list)


def test_every_group_is_checked_against_the_first_row(tmp_path):
    """Threads meet rows of another length first, or a fault that comes after it."""
    path = tmp_path / "catalog.parquet"
    rows = [{"ad_id": n, "sid": [1, 2]} for n in range(1, 41)]
    for number in range(30, 41):
        rows[number - 1] = {"ad_id": number, "sid": [1, 2, 3]}
    rows[34 - 1]["sid"] = [1, 2, -3]
    for order, message in (
        (rows, "row 30, sid: expected 2 tokens as in the rows before, got 3"),
        (rows[::-1], r"row 7, sid\[2\]: expected an integer from 0 to 2147483646, got -3"),
        (rows[34:] + rows[:34], "row 7, sid: expected 3 tokens as in the rows before, got 2"),
    ):
        table = pa.Table.from_pylist(order, pa.schema({"ad_id": "int64", "sid": SIDS}))
        pq.write_table(table, path, row_group_size=10)
        for workers in (1, 2, 4):
            with pytest.raises(CatalogError, match=message):
                read_catalog(path, BARE, workers=workers)


@pytest.mark.parametrize("kind", [pa.int64(), pa.string()])
@pytest.mark.parametrize("workers", [1, 3])
def test_an_id_that_comes_twice_names_both_rows(tmp_path, kind, workers):
    ids = [*range(10, 60)]
    ids[47], ids[3] = 31, 32  # rows 48 and 4 repeat rows 22 and 23
    table = pa.table({"ad_id": pa.array(ids).cast(kind), "sid": pa.array([[1]] * 50)})
    pq.write_table(table, tmp_path / "catalog.parquet", row_group_size=8)
    with pytest.raises(CatalogError, match=r"row 48, ad_id: '?31'? is in row 22 already"):
        read_catalog(tmp_path / "catalog.parquet", BARE, workers=workers)
    table = pa.Table.from_pylist([{"ad_id": 7}, {"ad_id": 7, "removed": True}])
    with pytest.raises(CatalogError, match="row 2, ad_id: 7 is in row 1 already"):
        read_changes(table.append_column("sid", pa.array([[1]] * 2)), BARE)


def test_ids_that_only_share_a_hash_are_two(monkeypatch):
    monkeypatch.setattr(
        "grace.catalog.parts.hash_texts", lambda text, offsets, workers: np.diff(offsets)
    )
    rows = [{"ad_id": text, "sid": [1]} for text in ("b", "a", "cc", "d", "ee")]
    assert read_catalog(rows, BARE).ad_ids.to_pylist() == ["b", "a", "cc", "d", "ee"]
    with pytest.raises(CatalogError, match="row 6, ad_id: 'cc' is in row 3 already"):
        read_catalog([*rows, rows[2]], BARE)


def test_text_that_is_not_utf8_is_refused(tmp_path):
    """Parquet says that it is text; Arrow believes it until it is looked at."""
    bad = pa.array([b"a", b"\xff", b"a"])
    for kind, coded in ((pa.string(), False), (pa.dictionary(pa.int32(), pa.string()), True)):
        text = pa.Array.from_buffers(pa.string(), 3, bad.buffers())
        values = text.dictionary_encode() if coded else text
        lists = pa.ListArray.from_arrays(pa.array([0, 1, 2, 3], pa.int32()), values)
        place = pa.StructArray.from_arrays([lists], ["include"])
        columns = {"ad_id": pa.array([1, 2, 3]), "sid": pa.array([[1]] * 3)}
        tables = [
            pa.table(columns | {"rules": pa.StructArray.from_arrays([place], ["place"])}),
            pa.table(columns | {"ad_id": values}),
            pa.table(columns | {"start": values}),
        ]
        for table in tables:
            assert table.schema.names
            with pytest.raises(CatalogError, match=r"row 2, .*: cannot be read"):
                read_catalog(table, SCHEMA)
            pq.write_table(table, tmp_path / "catalog.parquet")
            with pytest.raises(CatalogError, match=r"row 2, .*: cannot be read"):
                read_catalog(tmp_path / "catalog.parquet", SCHEMA)
        assert kind is not None


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"use_dictionary": False},
        {"use_dictionary": False, "column_encoding": "DELTA_BYTE_ARRAY"},
        {"use_dictionary": False, "column_encoding": "DELTA_LENGTH_BYTE_ARRAY"},
        {"dictionary_pagesize_limit": 64},
        {"dictionary_pagesize_limit": 64, "data_page_version": "2.0"},
    ],
    ids=str,
)
def test_every_encoding_of_texts(tmp_path, options):
    """Numbers in a dictionary, plain texts, or first one and then the other."""
    path = tmp_path / "catalog.parquet"
    rules = [{"place": {"include": [f"place {n % 97}", "x"]}} for n in range(600)]
    columns = {"ad_id": [str(n) for n in range(600)], "sid": [[1]] * 600, "rules": rules}
    table = pa.table(columns)
    if "column_encoding" in options:
        options = options | {
            "column_encoding": dict.fromkeys(
                ("ad_id", "rules.place.include.list.element"), options["column_encoding"]
            )
        }
    pq.write_table(table, path, row_group_size=250, **options)
    with patch.object(RowChecker, "add", side_effect=AssertionError("looked at a row")):
        assert ads_of(read_catalog(path, SCHEMA)) == ads_of(read_catalog(table, SCHEMA))


def test_long_texts_and_many_values_come_in_small_batches(tmp_path):
    path = tmp_path / "catalog.parquet"
    long = "x" * (17 << 20)
    many = [str(n) for n in range(100_000)]
    rules = [{"place": {"include": values}} for values in ([long], many, many[1:], ["y"])]
    rows = [{"ad_id": n, "sid": [1], "rules": rule} for n, rule in enumerate(rules)]
    pq.write_table(pa.Table.from_pylist(rows), path)
    with patch("grace.catalog.batches.BATCH_BYTES", 1 << 20):
        found = ads_of(read_catalog(path, SCHEMA))
    places = [ad[2][2][0] for ad in found]
    assert places == [{long}, set(many), set(many[1:]), {"y"}]


def test_changes():
    rows = [
        {"ad_id": "a", "sid": [1, 2], "paused": True},
        {"ad_id": "b", "removed": True, "sid": "whatever", "rules": 5},
        {"ad_id": "c", "sid": [3, 4], "removed": False},
    ]
    changes = read_changes(rows, SCHEMA)
    assert [ad[:2] for ad in ads_of(changes.ads)] == [("a", (1, 2)), ("c", (3, 4))]
    assert changes.removed.to_pylist() == ["b"]
    with pytest.raises(CatalogError, match="row 2, ad_id: 'a' is in row 1 already"):
        read_changes([rows[0], rows[0] | {"removed": True}], SCHEMA)
    with pytest.raises(CatalogError, match="row 2, removed: expected true or false, got 1"):
        read_changes([rows[0], {"ad_id": "d", "removed": 1}], SCHEMA)
    with pytest.raises(CatalogError, match="row 2, ad_id: expected a string as in"):
        read_changes([rows[0], {"ad_id": 4, "removed": True}], SCHEMA)
    with pytest.raises(CatalogError, match="row 2, sid: is missing"):
        read_catalog([rows[0], {"ad_id": "b", "removed": True}], SCHEMA)


@pytest.mark.parametrize("workers", [1, 2])
def test_changes_without_ads_or_rows(workers):
    gone = pa.table({"ad_id": pa.array([4, 2], pa.int32()), "removed": [True, True]})
    changes = read_changes(gone, SCHEMA, workers=workers)
    check_tables(changes.ads)
    assert changes.ads.sids.shape == (0, 0)
    assert changes.removed.equals(pa.array([4, 2]))
    for nothing in ([], gone[:0]):
        changes = read_changes(nothing, SCHEMA, workers=workers)
        check_tables(changes.ads)
        assert (len(changes.ads.ad_ids), len(changes.removed)) == (0, 0)
        with pytest.raises(CatalogError, match="the catalogue has no rows"):
            read_catalog(nothing, SCHEMA, workers=workers)


def test_workers_must_be_a_number_of_threads():
    with pytest.raises(ValueError, match="workers must be at least 1, got 0"):
        read_catalog(WHOLE, BARE, workers=0)


def test_a_time_out_of_range_names_its_row_and_field():
    starts = pa.array([0, None, 2**63 - 1], pa.timestamp("us"))
    table = pa.table({"ad_id": [1, 2, 3], "sid": [[0]] * 3, "start": starts})
    with pytest.raises(CatalogError, match="row 3, start: cannot be read"):
        read_catalog(table, BARE)
