"""Invariant 6: an index directory is whole or refused by name, whatever happened to its files."""

from __future__ import annotations

import contextlib
import json
import shutil
from pathlib import Path

import pytest
from harness import build_rows, cli, retrieve
from table_generator import TableGenerator
from test_faults_rows import SCHEMA, good_rows

import grace
from grace.errors import GraceError, IndexFormatError


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("whole") / "index"
    index = build_rows([row | {"ad_id": str(row["ad_id"])} for row in good_rows()], SCHEMA, folder)
    index.pause(["3", "4"])
    return folder


@pytest.fixture
def index_dir(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "index"))


def version_dir(index_dir: Path) -> Path:
    return index_dir / "versions" / (index_dir / "CURRENT").read_text().strip()


def version_files(index_dir: Path) -> list[Path]:
    return sorted(path for path in version_dir(index_dir).rglob("*") if path.is_file())


def check_refused(index_dir: Path, *words: str) -> None:
    """`open`, `verify` and `info` all refuse."""
    with pytest.raises(IndexFormatError):
        grace.Index.open(index_dir)
    for command in ("verify", "info"):
        cli("index", command, "--index", index_dir).check_refused(*words)


def test_whole_is_accepted(index_dir: Path):
    for command in ("verify", "info"):
        outcome = cli("index", command, "--index", index_dir)
        assert outcome.code == 0, outcome.err
    assert grace.Index.open(index_dir).num_ads == 100


def test_current_is_one_line_and_versions_hold_a_manifest(index_dir: Path):
    assert len((index_dir / "CURRENT").read_text().splitlines()) == 1
    suffixes = {path.suffix for path in version_files(index_dir)}
    assert ".safetensors" in suffixes
    assert ".json" in suffixes


@pytest.mark.parametrize("cut", ["empty", "half", "last byte"])
def test_each_file_truncated(index_dir: Path, cut: str):
    for path in version_files(index_dir):
        data = path.read_bytes()
        length = {"empty": 0, "half": len(data) // 2, "last byte": len(data) - 1}[cut]
        path.write_bytes(data[:length])
        if cut == "last byte" and path.suffix == ".json" and data.endswith(b"\n"):
            path.write_bytes(data[:-2])
        check_refused(index_dir)
        path.write_bytes(data)
    assert grace.Index.open(index_dir).num_ads == 100


def test_each_file_missing(index_dir: Path):
    for path in version_files(index_dir):
        data = path.read_bytes()
        path.unlink()
        check_refused(index_dir, path.name)
        path.write_bytes(data)


def test_bytes_appended_to_each_file(index_dir: Path):
    for path in version_files(index_dir):
        data = path.read_bytes()
        path.write_bytes(data + b"\0junk")
        cli("index", "verify", "--index", index_dir).check_refused()
        path.write_bytes(data)


def test_each_file_bit_flipped(index_dir: Path):
    """`verify` finds every flipped bit, all over each file; `open` may not crash on one."""
    for path in version_files(index_dir):
        data = path.read_bytes()
        for share in (0.0, 0.01, 0.3, 0.6, 0.95, 1.0):
            flipped = bytearray(data)
            flipped[int((len(data) - 1) * share)] ^= 0x04
            path.write_bytes(flipped)
            cli("index", "verify", "--index", index_dir).check_refused()
            with contextlib.suppress(GraceError):
                grace.Index.open(index_dir)
        path.write_bytes(data)
    assert cli("index", "verify", "--index", index_dir).code == 0


@pytest.mark.parametrize(
    "text", ["", "\n", "absent\n", "../versions\n", "/etc\n", "\0\n", "a\nb\n", "x" * 5000]
)
def test_current_points_nowhere(index_dir: Path, text: str):
    (index_dir / "CURRENT").write_text(text)
    check_refused(index_dir, "CURRENT")


def test_current_is_binary(index_dir: Path):
    (index_dir / "CURRENT").write_bytes(b"\xff\xfe\x00")
    check_refused(index_dir, "CURRENT")


def test_half_written_directories(index_dir: Path):
    """No CURRENT; no versions; an empty version."""
    current = (index_dir / "CURRENT").read_text()
    (index_dir / "CURRENT").unlink()
    check_refused(index_dir, "CURRENT")
    (index_dir / "CURRENT").write_text(current)
    for path in version_files(index_dir):
        path.unlink()
    check_refused(index_dir)
    shutil.rmtree(index_dir / "versions")
    check_refused(index_dir)


@pytest.mark.parametrize("version", [0, 1, 3, 999, "1", None, -1, True])
def test_other_format_versions(index_dir: Path, version):
    """An older or newer format is refused by name, before anything else is read."""
    (manifest,) = [path for path in version_files(index_dir) if path.suffix == ".json"]
    fields = json.loads(manifest.read_text())
    assert fields["format_version"] == 2
    manifest.write_text(json.dumps(fields | {"format_version": version}))
    check_refused(index_dir, "format")


@pytest.mark.parametrize("text", ["[]", "{}", "null", "5", '"x"', "{", '{"format_version": 1}'])
def test_manifest_of_another_shape(index_dir: Path, text: str):
    (manifest,) = [path for path in version_files(index_dir) if path.suffix == ".json"]
    manifest.write_text(text)
    check_refused(index_dir)


def test_each_manifest_field_missing(index_dir: Path):
    (manifest,) = [path for path in version_files(index_dir) if path.suffix == ".json"]
    fields = json.loads(manifest.read_text())
    for name in fields:
        manifest.write_text(json.dumps({key: v for key, v in fields.items() if key != name}))
        cli("index", "verify", "--index", index_dir).check_refused()


def test_arrays_of_another_index(index_dir: Path, tmp_path: Path):
    """A file that is whole, but not this version's."""
    other = tmp_path / "other"
    build_rows(good_rows(90), SCHEMA, other)
    for mine in version_files(index_dir):
        if mine.suffix == ".json":
            continue
        (theirs,) = [path for path in version_files(other) if path.name == mine.name]
        data = mine.read_bytes()
        mine.write_bytes(theirs.read_bytes())
        cli("index", "verify", "--index", index_dir).check_refused(mine.name)
        mine.write_bytes(data)


def test_foreign_folders(tmp_path: Path):
    absent, empty, file, foreign = (
        tmp_path / name for name in ("absent", "empty", "file", "foreign")
    )
    empty.mkdir()
    file.write_text("not a folder")
    foreign.mkdir()
    (foreign / "model.safetensors").write_bytes(b"\0" * 64)
    (foreign / "holiday.jpg").write_bytes(b"\xff\xd8")
    for path in (absent, empty, file, foreign):
        check_refused(path, path.name)
    assert not absent.exists()
    assert sorted(path.name for path in foreign.iterdir()) == ["holiday.jpg", "model.safetensors"]


def pause_log(index_dir: Path) -> Path:
    (log,) = [p for p in index_dir.iterdir() if p.is_file() and "pause" in p.name.lower()]
    return log


def paused_ads(index_dir: Path) -> set[str]:
    """Ids that a request for which every rule holds does not get."""
    index, plan = grace.Index.open(index_dir), ((1, 99), 99)
    request = {
        "id": 0,
        "attributes": {"country": "US", "age": 20},
        "features": {},
        "at": "2026-03-02T00:00:00Z",
    }
    (result,) = retrieve(index, TableGenerator(index.vocab_size), [request], "valid", plan)
    return {str(number) for number in range(100)} - {ad.ad_id for ad in result.ads}


def test_torn_pause_log_keeps_what_was_synced(index_dir: Path):
    """A crash anywhere in an append loses that append only, and the log takes more after it."""
    log = pause_log(index_dir)
    before = log.read_bytes()
    grace.Index.open(index_dir).pause(["5"])
    after = log.read_bytes()
    assert after.startswith(before)
    for length in range(len(before), len(after) + 1):
        log.write_bytes(after[:length])
        assert paused_ads(index_dir) in ({"3", "4"}, {"3", "4", "5"})
        grace.Index.open(index_dir).pause(["9"])
        assert {"3", "4", "9"} <= paused_ads(index_dir) <= {"3", "4", "5", "9"}
        grace.Index.open(index_dir).resume(["3", "9"])
        assert {"4"} <= paused_ads(index_dir) <= {"4", "5"}


@pytest.mark.parametrize("junk", [b"\xff\xff\n", b"{}\n", b"nonsense\n"])
def test_damaged_pause_log_is_refused(index_dir: Path, junk: bytes):
    """A whole line that means nothing is no torn append: refused, not skipped."""
    log = pause_log(index_dir)
    log.write_bytes(junk + log.read_bytes())
    check_refused(index_dir, log.name)


@pytest.mark.parametrize("damage", ["flipped", "missing"])
def test_a_rebuild_mends_a_damaged_version(index_dir: Path, damage: str):
    """The same catalogue again, over a version that is no longer what it was."""
    for path in version_files(index_dir):
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
        if damage == "missing":
            path.unlink()
        build_rows([row | {"ad_id": str(row["ad_id"])} for row in good_rows()], SCHEMA, index_dir)
        assert cli("index", "verify", "--index", index_dir).code == 0
        assert paused_ads(index_dir) == {"3", "4"}
