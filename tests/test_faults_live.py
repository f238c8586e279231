"""Watching, rolling back, pausing, killed at every system call: whole, and nothing twice."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from crash_live import watch_all
from harness import build_rows, cli
from test_faults_rows import SCHEMA, good_rows

import grace
from grace.index import history
from grace.index.versions import list_versions

SCRIPT = Path(__file__).with_name("crash_live.py")


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """An index whose ad 1 is paused; twice published, so that it has something to go back to."""
    folder = tmp_path / "old"
    build_rows(good_rows(3), SCHEMA, folder, watermark="000")
    build_rows(good_rows(5), SCHEMA, folder, watermark="000001.jsonl")
    index = grace.Index.open(folder)
    index.pause([1, 3])
    index.resume([3])
    return folder


@pytest.fixture
def changes(tmp_path: Path) -> Path:
    """Four deltas; the third takes the second back, so that a version comes twice."""
    folder, row = tmp_path / "changes", good_rows(9)
    folder.mkdir()
    deltas = [
        [row[7], {"ad_id": 4, "removed": True}],  # before the watermark: applied already
        [row[6] | {"sid": [0, 0]}, {"ad_id": 0, "removed": True}],
        [row[0], {"ad_id": 6, "removed": True}],
        [row[8], row[2] | {"rules": {}}],
    ]
    for number, delta in enumerate(deltas, start=1):
        text = "".join(json.dumps(change) + "\n" for change in delta)
        (folder / f"{number:06}.jsonl").write_text(text)
    (folder / "000005.jsonl.tmp").write_text("half")
    return folder


def crash(change: str, old: Path, changes: Path, root: Path) -> list[Path]:
    """Return the copies, one per point at which the change was killed; the last is whole."""
    root.mkdir()
    command = [sys.executable, str(SCRIPT), change, str(old), str(changes), str(root)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    points = [line.split() for line in done.stdout.splitlines()]
    assert points[-1][1] == "whole"
    assert {"fsync", "replace"} <= {call for _, call in points}
    return [root / number for number, _ in points]


def check_tidy(folder: Path) -> None:
    names = [path.name for path in folder.rglob("*")]
    assert not [name for name in names if name.endswith(".tmp") or name.startswith((".un", ".rem"))]


def test_watch_killed_before_each_system_call(old: Path, changes: Path, tmp_path: Path):
    """A restart ends in what an undisturbed run ends in, byte for byte, from every point."""
    *copies, undisturbed = crash("watch", old, changes, tmp_path / "copies")
    want = grace.Index.open(undisturbed)
    ids = [row["ad_id"] for row in good_rows(9) if row["ad_id"] in (0, 1, 2, 3, 4, 8)]
    assert sorted(want.take_ad_ids(range(want.num_ads))) == ids
    watermarks = []
    for copy in copies:
        assert grace.Index.open(copy).find_ads([1, 3]).min() >= 0
        published = history.current_publication(copy)
        watermarks.append(published.watermark)
        watcher = watch_all(str(copy), str(changes))
        assert (watcher.version, watcher.watermark) == (want.version, "000004.jsonl")
        got = grace.Index.open(copy)
        assert got.version == want.version
        assert got.ad_state.tolist() == want.ad_state.tolist()
        entries = history.read_history(copy)
        assert [entry.watermark for entry in entries] == [
            "000", *(f"{number:06}.jsonl" for number in range(1, 5)),
        ]  # fmt: skip
        kept = [version.version for version in list_versions(undisturbed)]
        assert [version.version for version in list_versions(copy)][: len(kept)] == kept
        if published.watermark != "000004.jsonl":  # each publication tidies up after the one before
            check_tidy(copy)
    assert watermarks == sorted(watermarks)
    assert set(watermarks) == {f"{number:06}.jsonl" for number in range(1, 5)}


def test_rollback_killed_before_each_system_call(old: Path, changes: Path, tmp_path: Path):
    now, before = (version.version for version in list_versions(old))
    *copies, undisturbed = crash("rollback", old, changes, tmp_path / "copies")
    assert grace.Index.open(undisturbed).version == before
    found = []
    for copy in copies:
        found.append(grace.Index.open(copy).version)
        published = history.current_publication(copy)
        assert published.watermark == {now: "000001.jsonl", before: "000"}[found[-1]]
        cli("index", "rollback", "--index", copy, "--to", before)
        assert grace.Index.open(copy).version == before
        assert history.current_publication(copy).watermark == "000"
        check_tidy(copy)
    assert set(found) == {now, before}
    assert found == sorted(found, key=[now, before].index)


def test_states_killed_before_each_system_call(old: Path, changes: Path, tmp_path: Path):
    """What was acknowledged stays through the compactions; the next change comes on top."""
    copies = crash("states", old, changes, tmp_path / "copies")
    found = []
    for copy in copies:
        index = grace.Index.open(copy)
        one, two, three, four = index.find_ads([1, 2, 3, 4]).tolist()
        assert index.ad_state[[one, three, four]].tolist() == [1, 0, 0]
        found.append(int(index.ad_state[two]))
        index.bid_off([4])
        assert grace.Index.open(copy).ad_state[[one, four]].tolist() == [1, 2]
        build_rows(good_rows(5), SCHEMA, copy)
        assert grace.Index.open(copy).ad_state.tolist() == index.ad_state.tolist()
        check_tidy(copy)
    assert found == sorted(found)
    assert set(found) == {0, 1, 3}


def test_watch_killed_at_any_time(old: Path, changes: Path, tmp_path: Path):
    """Also inside a write, where no call of Python's stands; and ended with SIGTERM."""
    rows = [{"ad_id": number, "sid": [number % 50, number % 70]} for number in range(100, 2100)]
    (changes / "000005.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    command = [sys.executable, "-m", "grace", "index", "watch", "--interval", "0.05", "--json"]
    arguments = ["--index", str(old), "--changes", str(changes)]
    began = time.monotonic()
    assert subprocess.run([*command, *arguments, "--once"], check=False).returncode == 0
    took = time.monotonic() - began
    want = grace.Index.open(old)
    build_rows(good_rows(5), SCHEMA, old, watermark="000001.jsonl")
    for share in (0.8, 0.95):
        process = subprocess.Popen([*command, *arguments], stdout=subprocess.PIPE)
        time.sleep(took * share)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        assert grace.Index.open(old).num_ads in (5, want.num_ads)
    build_rows(good_rows(5), SCHEMA, old, watermark="000001.jsonl")
    process = subprocess.Popen([*command, *arguments], stdout=subprocess.PIPE, text=True)
    assert json.loads(process.stdout.readline())["version"] == want.version
    process.terminate()
    assert process.communicate()[0] == ""
    assert process.returncode == 128 + signal.SIGTERM
    assert grace.Index.open(old).version == want.version
    assert history.current_publication(old).watermark == "000005.jsonl"
    check_tidy(old)
