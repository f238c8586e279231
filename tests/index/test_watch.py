"""Deltas merged as they come equal a build from the changed catalogue; bad ones are refused."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from harness import build_rows, examples
from hypothesis import given
from hypothesis import strategies as st
from strategies import cases
from test_faults_rows import SCHEMA, good_rows

import grace
from grace.catalog import Schema, write_rows
from grace.errors import ConfigError, DataError, IndexFormatError
from grace.index import history
from grace.index.deltas import DeltaDirectory
from grace.index.versions import list_versions, rollback
from grace.index.watch import Watcher

TARGETING = Schema.from_dict({"attributes": SCHEMA})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An index of ads 0..4."""
    build_rows(good_rows(5), SCHEMA, tmp_path / "index")
    (tmp_path / "changes").mkdir()
    return tmp_path


def put(folder: Path, name: str, *rows: dict) -> None:
    path = folder / "changes" / name
    if path.suffix == ".parquet":
        write_rows(path, rows)
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def watcher(folder: Path, schema: Schema = TARGETING, **options) -> Watcher:
    return Watcher(folder / "index", DeltaDirectory(folder / "changes", schema), **options)


def ids(folder: Path) -> list:
    index = grace.Index.open(folder / "index")
    return sorted(index.take_ad_ids(range(index.num_ads)))


def add(number: int) -> dict:
    return good_rows(number + 1)[-1]


def gone(number: int) -> dict:
    return {"ad_id": number, "removed": True}


@examples(1)
@given(case=cases(max_ads=40, max_vocab=6), data=st.data())
def test_equals_a_build_from_the_changed_catalogue(tmp_path_factory, case, data):
    """Random deltas over a random part of a catalogue, in steps of random size."""
    folder = tmp_path_factory.mktemp("watched")
    (folder / "changes").mkdir()
    ads = {row["ad_id"]: row for row in case.ads}
    first = data.draw(st.integers(0, len(case.ads)))
    held = {row["ad_id"]: row for row in case.ads[:first]}
    schema = Schema.from_dict({"attributes": list(case.schema)})
    if held:
        build_rows(list(held.values()), case.schema, folder / "index")
    opened = watcher(folder, schema)
    for number in range(data.draw(st.integers(1, 5))):
        touched = data.draw(st.lists(st.sampled_from(list(ads)), min_size=1, unique=True))
        rows = []
        for ad_id in touched:
            like = data.draw(st.sampled_from(case.ads)) | {"ad_id": ad_id}
            rows.append(data.draw(st.sampled_from([like, ads[ad_id], gone(ad_id)])))
        left = held | {row["ad_id"]: row for row in rows if not row.get("removed")}
        for row in rows:
            if row.get("removed"):
                left.pop(row["ad_id"], None)
        if not left or (not held and all(row.get("removed") for row in rows)):
            continue
        held = left
        put(folder, f"{number:03}.jsonl", *rows)
        if data.draw(st.booleans()):
            opened.step()
        if data.draw(st.booleans()):
            opened = watcher(folder, schema)
    opened.step()
    if held:
        want = build_rows(list(held.values()), case.schema, folder / "again")
        assert grace.Index.open(folder / "index").version == want.version


def test_parquet_deltas_and_one_version_for_all_that_came(folder: Path):
    put(folder, "001.parquet", add(5) | {"removed": False}, gone(0))
    put(folder, "002.parquet", add(6), add(5) | {"sid": [3, 3]})
    step = watcher(folder).step()
    assert (step.deltas, step.changed, step.removed, step.ads) == (2, 3, 1, 6)
    assert step.watermark == "002.parquet"
    assert ids(folder) == [1, 2, 3, 4, 5, 6]
    assert len(list_versions(folder / "index")) == 2


def test_a_delta_counts_when_it_has_its_name(folder: Path):
    opened = watcher(folder)
    for name in (".001.jsonl", "_001.jsonl", "001.jsonl.tmp"):
        (folder / "changes" / name).write_text("{half")
    assert opened.step() is None
    put(folder, "x.tmp", add(5))
    (folder / "changes" / "x.tmp").rename(folder / "changes" / "001.jsonl")
    assert opened.step().watermark == "001.jsonl"
    assert opened.step() is None
    assert ids(folder) == list(range(6))


def test_the_first_version_can_come_from_deltas(folder: Path):
    index = folder / "index"
    index.rename(folder / "moved")
    put(folder, "001.jsonl", add(0), gone(7))
    put(folder, "002.jsonl", add(1))
    assert watcher(folder).step().version == build_rows(good_rows(2), SCHEMA, folder / "b").version
    assert history.current_publication(index).watermark == "002.jsonl"


def test_a_damaged_current_is_no_empty_index(folder: Path):
    (folder / "index" / "CURRENT").write_text("\n")
    put(folder, "001.jsonl", add(0))
    with pytest.raises(IndexFormatError, match="CURRENT"):
        watcher(folder)


def test_a_build_says_which_deltas_it_holds(folder: Path):
    put(folder, "001.jsonl", gone(4))
    put(folder, "002.jsonl", add(9))
    build_rows(good_rows(5), SCHEMA, folder / "index", watermark="001.jsonl")
    watcher(folder).step()
    assert ids(folder) == [0, 1, 2, 3, 4, 9]


BAD = {
    "row": ([add(6), add(7) | {"rules": {"age": {"min": "x"}}}], ["row 2", "rules.age.min"]),
    "removed": ([gone(1) | {"removed": 1}], ["row 1", "removed"]),
    "twice": ([add(6), gone(6)], ["row 1", "ad_id", "6"]),
    "levels": ([add(6) | {"sid": [1, 2, 3]}], ["sid", "2 tokens"]),
    "type": ([add(6) | {"ad_id": "six"}], ["ad_id"]),
    "all": ([gone(number) for number in range(6)], ["at least one"]),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_delta_stops_and_skips_nothing(folder: Path, name: str):
    """Those before it are published; mended, it and those after it follow."""
    rows, words = BAD[name]
    put(folder, "001.jsonl", add(5))
    put(folder, "002.jsonl", *rows)
    put(folder, "003.jsonl", add(8))
    opened = watcher(folder)
    for _ in range(2):
        with pytest.raises(DataError) as refused:
            opened.step()
        for word in (*words, "002.jsonl", "mend it", "watermark 001.jsonl, stays current"):
            assert word in str(refused.value)
        assert ids(folder) == list(range(6))
    put(folder, "002.jsonl", add(7))
    watcher(folder).step()
    assert ids(folder) == [*range(6), 7, 8]


def test_torn_parquet(folder: Path):
    pq.write_table(pa.Table.from_pylist([{"ad_id": 5, "sid": [1, 1]}]), folder / "whole")
    (folder / "changes" / "001.parquet").write_bytes((folder / "whole").read_bytes()[:-9])
    with pytest.raises(DataError, match=r"001\.parquet: cannot be read as Parquet"):
        watcher(folder).step()


@pytest.mark.parametrize("name", ["notes.txt", "001", "folder.jsonl"])
def test_what_is_no_delta_is_not_skipped_silently(folder: Path, name: str):
    path = folder / "changes" / name
    path.mkdir() if name.startswith("folder") else path.write_text("x")
    with pytest.raises(DataError, match=f"{name}: expected a file"):
        watcher(folder).step()


def test_a_delta_that_comes_too_late_is_refused(folder: Path):
    opened = watcher(folder)
    put(folder, "9.jsonl", add(5))
    opened.step()
    put(folder, "10.jsonl", add(6))
    with pytest.raises(DataError, match=r"10\.jsonl: came after 9\.jsonl was applied"):
        opened.step()


def test_no_directory_of_changes(folder: Path):
    (folder / "changes").rmdir()
    with pytest.raises(DataError, match="changes: cannot be listed"):
        watcher(folder).step()


def test_a_rollback_stops_a_watcher_and_is_not_undone_by_the_next(folder: Path):
    opened = watcher(folder)
    put(folder, "001.jsonl", add(5))
    opened.step()
    put(folder, "002.jsonl", gone(5), add(6))
    opened.step()
    rollback(folder / "index")
    with pytest.raises(IndexFormatError, match="was made current by a build or a rollback"):
        opened.step()
    assert ids(folder) == list(range(6))
    with pytest.raises(IndexFormatError, match=r"002\.jsonl would be applied again"):
        watcher(folder).step()
    put(folder, "002.jsonl", add(7))
    watcher(folder, resume=True).step()
    assert ids(folder) == [0, 1, 2, 3, 4, 5, 7]
    put(folder, "003.jsonl", add(8))
    watcher(folder).step()
    assert ids(folder) == [0, 1, 2, 3, 4, 5, 7, 8]


def test_a_version_published_during_a_merge_is_not_lost(folder: Path):
    """Somebody else's version came between reading the base and publishing."""
    from grace.index import storage

    data = grace.Index.open(folder / "index").data
    build_rows(good_rows(7), SCHEMA, folder / "index")
    with pytest.raises(IndexFormatError, match="became current while changes were merged"):
        storage.save(data, folder / "index", merged_into="0" * 16)
    assert ids(folder) == list(range(7))


def test_a_first_version_replaces_nobody_elses(tmp_path):
    """A watcher that began with nothing must not write over a version built meanwhile."""
    (tmp_path / "changes").mkdir()
    opened = watcher(tmp_path)
    assert opened.step() is None
    build_rows(good_rows(9), SCHEMA, tmp_path / "index")
    put(tmp_path, "001.parquet", add(77))
    with pytest.raises(IndexFormatError, match="became current"):
        opened.step()
    assert ids(tmp_path) == list(range(9))


def test_a_name_that_no_text_can_hold_is_refused(folder):
    name = os.fsdecode(b"1\xff.jsonl")
    (folder / "changes" / name).write_text(json.dumps(add(5)) + "\n")
    with pytest.raises(DataError, match="expected names of printable text"):
        watcher(folder).step()


@pytest.mark.parametrize("watermark", ["", "a\nb", os.fsdecode(b"\xff")])
def test_a_watermark_is_a_name(tmp_path, watermark):
    with pytest.raises(ConfigError, match="watermark: expected the name of a delta"):
        build_rows(good_rows(2), SCHEMA, tmp_path / "index", watermark=watermark)
    assert not (tmp_path / "index").exists()
