"""Versions on disk: which stay, which is current, how to go back, and what their history says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import grace
from grace.errors import IndexFormatError
from grace.index import history
from grace.index.versions import list_versions, rollback

NOBODY = {"attributes": []}


def build(folder: Path, num_ads: int, **options) -> str:
    ads = [{"ad_id": n, "sid": [n]} for n in range(num_ads)]
    return grace.build_index(ads, NOBODY, folder, **options).version


def on_disk(folder: Path) -> list[str]:
    return [version.version for version in list_versions(folder)]


def test_the_last_ones_stay(tmp_path: Path):
    built = [build(tmp_path, n, watermark=f"{n:03}") for n in range(1, 6)]
    assert on_disk(tmp_path) == built[:1:-1]
    assert {path.name for path in (tmp_path / "versions").iterdir()} == set(built[2:])
    current, *older = list_versions(tmp_path)
    assert current.current
    assert not any(version.current for version in older)
    assert (current.parent, current.watermark, current.action) == (built[3], "005", "build")
    assert current.counts["ads"] == 5
    assert build(tmp_path, 6, keep=1) == on_disk(tmp_path)[0]
    assert len(on_disk(tmp_path)) == 1


@pytest.mark.parametrize("keep", [0, -1])
def test_none_is_too_few(tmp_path: Path, keep: int):
    with pytest.raises(ValueError, match="keep must be at least 1"):
        build(tmp_path, 1, keep=keep)
    assert not list(tmp_path.iterdir())


def test_a_reader_keeps_a_version_whose_files_are_gone(tmp_path: Path):
    build(tmp_path, 3)
    index = grace.Index.open(tmp_path)
    build(tmp_path, 4, keep=1)
    build(tmp_path, 5, keep=1)
    assert not (tmp_path / "versions" / index.version).exists()
    assert index.take_ad_ids(range(3)) == [0, 1, 2]
    index.pause([1])
    assert index.ad_state.tolist() == [0, 1, 0]
    assert grace.Index.open(tmp_path).ad_state.tolist() == [0, 1, 0, 0, 0]


def test_rollback_steps_back_again_and_again(tmp_path: Path):
    built = [build(tmp_path, n, watermark=f"{n:03}") for n in range(1, 4)]
    for want in (1, 0):
        done = rollback(tmp_path)
        assert (done.version, done.watermark) == (built[want], f"{want + 1:03}")
        assert grace.Index.open(tmp_path).version == built[want]
    with pytest.raises(IndexFormatError, match="no version is known from before"):
        rollback(tmp_path)
    assert rollback(tmp_path, built[2]).watermark == "003"
    assert grace.Index.open(tmp_path).num_ads == 3
    assert [v.action for v in list_versions(tmp_path)] == ["rollback"] * 3


def test_rollback_to_what_is_not_there_changes_nothing(tmp_path: Path):
    built = [build(tmp_path, n) for n in range(1, 4)]
    arrays = tmp_path / "versions" / built[1] / "arrays.safetensors"
    arrays.write_bytes(arrays.read_bytes()[:-1] + b"\xff")
    for to, words in (
        (built[1], "arrays.safetensors"),
        ("0" * 16, "has no version"),
        (None, "arrays"),
    ):
        with pytest.raises(IndexFormatError, match=words):
            rollback(tmp_path, to)
        assert grace.Index.open(tmp_path).version == built[2]
    with pytest.raises(IndexFormatError, match="holds no index"):
        rollback(tmp_path / "versions")
    assert {path.name for path in (tmp_path / "versions").iterdir()} == set(built)


def test_equal_content_is_one_version_with_its_latest_watermark(tmp_path: Path):
    first = build(tmp_path, 2, watermark="001")
    build(tmp_path, 3, watermark="002")
    assert build(tmp_path, 2, watermark="003") == first
    assert [v.watermark for v in list_versions(tmp_path)] == ["003", "002"]
    assert build(tmp_path, 2, watermark="004") == first
    assert history.current_publication(tmp_path).watermark == "004"


@pytest.mark.parametrize("torn", [b"", b'{"version": "half'])
def test_a_line_that_never_became_current_is_cut_off(tmp_path: Path, torn: bytes):
    """Written by a builder that was killed before it replaced CURRENT."""
    first, second = build(tmp_path, 1, watermark="001"), build(tmp_path, 2, watermark="002")
    log = tmp_path / "history.jsonl"
    whole = log.read_bytes()
    pending = json.loads(whole.splitlines()[0]) | {"watermark": "003"}
    log.write_bytes(whole + json.dumps(pending).encode() + b"\n" + torn)
    assert history.current_publication(tmp_path).watermark == "002"
    assert rollback(tmp_path).version == first
    entries = history.read_history(tmp_path)
    assert [entry.watermark for entry in entries] == ["001", "002", "001"]
    assert history.current_publication(tmp_path).watermark == "001"
    assert second in on_disk(tmp_path)


def test_a_first_version_that_never_became_current(tmp_path: Path):
    build(tmp_path, 1, watermark="001")
    (tmp_path / "CURRENT").unlink()
    assert history.read_history(tmp_path) == []
    build(tmp_path, 2, watermark="002")
    assert [entry.watermark for entry in history.read_history(tmp_path)] == ["002"]


def test_an_index_from_before_there_was_a_history(tmp_path: Path):
    old = build(tmp_path, 1)
    (tmp_path / "history.jsonl").unlink()
    (only,) = list_versions(tmp_path)
    assert (only.version, only.watermark, only.current) == (old, None, True)
    assert only.counts["ads"] == 1
    assert history.current_publication(tmp_path) is None
    build(tmp_path, 2)
    assert rollback(tmp_path).version == old


WRONG = {"version": "a", "created": "b", "action": "build", "parent": None, "watermark": None}


@pytest.mark.parametrize(
    "line", ["x", "{}", "[]", "null", *(json.dumps(WRONG | {"counts": c}) for c in (5, {}))]
)
def test_a_damaged_history_is_refused_by_number(tmp_path: Path, line: str):
    """A build too, before its work; opening needs no history."""
    build(tmp_path, 1)
    with open(tmp_path / "history.jsonl", "a") as file:
        file.write(line + "\n")
    for call in (list_versions, rollback, lambda folder: build(folder, 2)):
        with pytest.raises(IndexFormatError, match=r"history\.jsonl: line 2 is damaged"):
            call(tmp_path)
    assert grace.Index.open(tmp_path).num_ads == 1


def test_a_long_history_forgets_its_oldest_lines(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(history, "MAX_LINES", 6)
    first = build(tmp_path, 1, watermark="first")
    for number in range(12):
        build(tmp_path, 2, watermark=f"{number:03}")
    entries = history.read_history(tmp_path)
    assert len(entries) <= 6
    assert entries[0].version == first
    assert rollback(tmp_path).watermark == "first"


def test_what_a_killed_removal_left_goes_next_time(tmp_path: Path):
    build(tmp_path, 1)
    left = tmp_path / "versions" / ".removed-0123456789abcdef"
    left.mkdir()
    (left / "arrays.safetensors").write_bytes(b"half")
    assert len(on_disk(tmp_path)) == 1
    build(tmp_path, 2)
    assert not left.exists()
