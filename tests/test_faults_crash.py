"""Builds that are killed, that race, and that run out of disk: what stands is whole, old or new."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from harness import build_rows, cli, retrieve
from table_generator import TableGenerator
from test_faults_rows import SCHEMA, YAML, good_rows

import grace

BUILD = "import sys, grace; grace.build_index(sys.argv[1], sys.argv[2], out=sys.argv[3])"
BUILD_WITH_LITTLE_DISK = """
import resource, runpy
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
runpy.run_module("grace", run_name="__main__")
"""


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """An index of one ad."""
    build_rows(good_rows(1), SCHEMA, tmp_path / "old")
    return tmp_path / "old"


@pytest.fixture
def catalog(tmp_path: Path) -> tuple[Path, Path]:
    rows = [{"ad_id": n, "sid": [n % 50, n % 70, n % 90]} for n in range(10_000)]
    (tmp_path / "new.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "schema.yaml").write_text(YAML)
    return tmp_path / "new.jsonl", tmp_path / "schema.yaml"


def start(code: str, *arguments: str | Path) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def check_whole(folder: Path, num_ads: set[int]) -> None:
    assert grace.Index.open(folder).num_ads in num_ads
    assert cli("index", "verify", "--index", folder).code == 0


def half_written(folder: Path) -> list[Path]:
    return [p for p in folder.rglob("*") if p.name.endswith(".tmp") or "unfinished" in p.name]


def test_killed_before_each_system_call(old: Path, catalog, tmp_path: Path):
    """The old version until CURRENT is replaced, then the new one; the next build tidies up."""
    script, root = Path(__file__).with_name("crash_points.py"), tmp_path / "copies"
    root.mkdir()
    done = subprocess.run(
        [sys.executable, script, old, *catalog, root], capture_output=True, text=True, check=True
    )
    points = [line.split() for line in done.stdout.splitlines()]
    assert points[-1][1] == "whole"
    assert {"fsync", "replace"} <= {call for _, call in points}
    counts = [grace.Index.open(root / number).num_ads for number, _ in points]
    assert counts == sorted(counts)
    assert set(counts) == {1, 10_000}
    for number, _ in points:
        check_whole(root / number, {1, 10_000})
        build_rows(good_rows(7), SCHEMA, root / number)
        check_whole(root / number, {7})
        assert half_written(root / number) == []


def test_killed_at_any_time(old: Path, catalog, tmp_path: Path):
    """Also inside a write, where no call of Python's stands."""
    began = time.monotonic()
    assert start(BUILD, *catalog, tmp_path / "timing").wait() == 0
    took = time.monotonic() - began
    for share in (0.7, 0.9, 0.97):
        process = start(BUILD, *catalog, old)
        time.sleep(took * share)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        check_whole(old, {1, 10_000})


def test_two_builds_at_once(old: Path, catalog):
    """Both may win, or one is refused with a clear line; what is left is one of them, whole."""
    processes = [start(BUILD, *catalog, old) for _ in range(2)]
    outputs = [process.communicate(timeout=120) for process in processes]
    codes = [process.returncode for process in processes]
    assert 0 in codes
    for code, (_, stderr) in zip(codes, outputs, strict=True):
        assert code == 0 or "IndexFormatError" in stderr
    check_whole(old, {10_000})
    assert half_written(old) == []


def test_no_room_for_the_arrays(old: Path, catalog):
    """A file that cannot grow: exit code 2, a line that names it, the old version, no debris."""
    process = start(
        BUILD_WITH_LITTLE_DISK,
        *("index", "build", "--catalog", catalog[0], "--schema", catalog[1], "--out", old),
    )
    out, err = process.communicate(timeout=120)
    assert process.returncode == 2, err
    assert "Traceback" not in out + err
    assert err.strip()
    check_whole(old, {1})
    assert half_written(old) == []


def test_readers_during_rebuilds(old: Path):
    """Builds replace CURRENT under readers: each answer is of one version, whole; none is lost."""
    pinned = grace.Index.open(old)
    before = answer(pinned)
    sizes = (5, 30, 8, 100)
    stop = threading.Event()

    def rebuild() -> None:
        while not stop.is_set():
            for size in sizes:
                build_rows(good_rows(size), SCHEMA, old)

    builder = threading.Thread(target=rebuild)
    builder.start()
    try:
        for _ in range(40):
            index = grace.Index.open(old)
            assert index.num_ads in (1, *sizes)
            assert answer(index) == set(range(index.num_ads))
            assert answer(pinned) == before
    finally:
        stop.set()
        builder.join()
    assert grace.Index.open(old).num_ads == sizes[-1]


def answer(index: grace.Index) -> set[int]:
    """Ids of all ads: every rule of these rows accepts this request."""
    request = {"id": 0, "attributes": {"country": "US", "age": 20}, "features": {}}
    generator, plan = TableGenerator(index.vocab_size), ((1, 99), 99)
    (result,) = retrieve(index, generator, [request], "exact", plan)
    return {ad.ad_id for ad in result.ads}
