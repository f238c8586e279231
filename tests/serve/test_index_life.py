"""A serving engine and its index: versions come, break, go back; every answer is of one, whole."""

from __future__ import annotations

import gc
import json
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from harness import build_rows, cli
from table_generator import TableGenerator
from test_faults_rows import SCHEMA, good_rows
from test_faults_swap import PLAN, VOCAB, shifted, whole

import grace
from grace.errors import IndexFormatError
from grace.index.versions import list_versions, rollback
from grace.serve import Answer, Engine

REQUEST = {"id": 1, "attributes": {"country": "US", "age": 20}, "features": {"seed": 3}}


@pytest.fixture
def start() -> Iterator[Callable[..., Engine]]:
    """Start engines that are drained after the test."""
    engines = []

    def begin(folder: Path, model: object = None) -> Engine:
        engines.append(Engine(folder, model or TableGenerator(VOCAB), PLAN))
        return engines[-1]

    yield begin
    for engine in engines:
        assert engine.drain()


def ask(engine: Engine) -> Answer:
    answer = engine.submit(REQUEST).future.result(60)
    assert answer.error is None
    assert answer.index.version == answer.version
    return answer


def ads_of(answer: Answer) -> frozenset:
    ids = answer.index.take_ad_ids(answer.positions)
    return frozenset(zip(ids, map(tuple, answer.sids.tolist()), strict=True))


def wait_until(true: Callable[[], object]) -> None:
    deadline = time.monotonic() + 60
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def put(changes: Path, number: int, rows: list[dict]) -> None:
    """A delta, named when it is whole."""
    unnamed = changes / f"{number:06}.jsonl.tmp"
    unnamed.write_text("".join(json.dumps(row) + "\n" for row in rows))
    unnamed.rename(unnamed.with_suffix(""))


def test_follows_a_watch_and_a_rollback(tmp_path: Path, start):
    """A real `grace index watch` publishes under load; every answer is of one version, whole."""
    folder, changes = tmp_path / "index", tmp_path / "changes"
    changes.mkdir()
    first = build_rows(shifted(5), SCHEMA, folder).version
    engine = start(folder)
    content, answers, asking = {first: whole(5)}, [], True

    def keep_asking() -> None:
        while asking:
            answers.append(ask(engine))

    watch = subprocess.Popen(
        [sys.executable, "-m", "grace", "index", "watch", "--interval", "0.05", "--json",
         "--index", folder, "--changes", changes],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    asker = threading.Thread(target=keep_asking)
    asker.start()
    try:
        held, retrievers = 5, {}
        for number, size in enumerate((30, 8, 12)):
            gone = [{"ad_id": ad_id, "removed": True} for ad_id in range(size, held)]
            put(changes, number, [*shifted(size), *gone])
            step = json.loads(watch.stdout.readline())
            content[step["version"]], held = whole(size), size
            wait_until(lambda step=step: engine.status()["version"] == step["version"])
            assert ask(engine).version == step["version"]
            retrievers[step["version"]] = engine.retriever
        *_, before, last = content
        back = cli("index", "rollback", "--index", folder, "--json")
        assert json.loads(back.out)["version"] == before
        # Kept open since: nothing is loaded, and the very next batch has it.
        assert ask(engine).version == before
        assert engine.retriever is retrievers[before]
        assert watch.wait(60) == 2
        assert "rollback" in watch.stderr.read()
        assert cli("index", "rollback", "--index", folder, "--to", last).code == 0
        assert ask(engine).version == last
    finally:
        asking = False
        asker.join()
        watch.kill()
        watch.communicate()
    assert {answer.version for answer in answers} == set(content)
    assert all(ads_of(answer) == content[answer.version] for answer in answers)
    assert engine.status()["failure"] is None


def test_a_batch_keeps_its_version(tmp_path: Path, start):
    """A version published and opened in the middle of a batch answers the next one."""
    build_rows(shifted(5), SCHEMA, tmp_path)

    class Publishing(TableGenerator):
        def start(self, features: list[dict]):
            if engine.reader.held.num_ads == 5:
                build_rows(shifted(8), SCHEMA, tmp_path, keep=1)
                opening = threading.Thread(target=engine.reader.refresh)
                opening.start()
                opening.join()
            return super().start(features)

    engine = start(tmp_path, Publishing(VOCAB))
    assert ads_of(ask(engine)) == whole(5)
    assert ads_of(ask(engine)) == whole(8)


def test_a_version_is_loaded_and_warmed_beside(tmp_path: Path, start, monkeypatch):
    """Batches are answered while a version is opened; its matcher is derived before its first."""
    build_rows(shifted(5), SCHEMA, tmp_path)
    engine = start(tmp_path)
    opening, go_on, open_index = threading.Event(), threading.Event(), grace.Index.open

    def slow_open(directory: Path) -> grace.Index:
        opening.set()
        assert go_on.wait(60)
        return open_index(directory)

    monkeypatch.setattr(grace.Index, "open", slow_open)
    build_rows_beside(tmp_path, 8, open_index)
    assert ads_of(ask(engine)) == whole(5)
    assert opening.wait(60)
    assert ads_of(ask(engine)) == whole(5)
    go_on.set()
    wait_until(lambda: engine.status()["version"] != list_versions(tmp_path)[1].version)
    assert "exact" in vars(engine.index)
    assert ads_of(ask(engine)) == whole(8)


def build_rows_beside(folder: Path, size: int, open_index: Callable) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(grace.Index, "open", open_index)
        build_rows(shifted(size), SCHEMA, folder)


def test_two_versions_are_held_at_most(tmp_path: Path, start):
    build_rows(shifted(5), SCHEMA, tmp_path)
    engine = start(tmp_path)
    held = [weakref.ref(engine.index)]
    for size in (6, 7, 8):
        build_rows(shifted(size), SCHEMA, tmp_path)
        held.append(weakref.ref(engine.reader.refresh()))
        ask(engine)
        gc.collect()
        assert [there() is not None for there in held[-2:]] == [True, True]
        assert not any(there() for there in held[:-2])


def test_a_damaged_version_is_refused_until_it_is_mended(tmp_path: Path, start):
    build_rows(shifted(5), SCHEMA, tmp_path)
    engine = start(tmp_path)
    damaged = build_rows(shifted(8), SCHEMA, tmp_path).version
    arrays = tmp_path / "versions" / damaged / "arrays.safetensors"
    content = bytearray(arrays.read_bytes())
    content[-9] ^= 1
    arrays.write_bytes(content)
    assert ads_of(ask(engine)) == whole(5)
    wait_until(lambda: engine.status()["failure"])
    assert "arrays.safetensors" in engine.status()["failure"]
    assert ads_of(ask(engine)) == whole(5)
    with pytest.raises(IndexFormatError, match="arrays"):
        engine.reader.refresh()
    build_rows(shifted(8), SCHEMA, tmp_path)  # writes the same version anew
    assert engine.reader.refresh().version == damaged
    assert ads_of(ask(engine)) == whole(8)
    assert engine.status()["failure"] is None


def test_a_refresh_that_fails_says_so_in_the_status(tmp_path: Path, start):
    first = build_rows(shifted(5), SCHEMA, tmp_path).version
    engine = start(tmp_path)
    build_rows([row | {"sid": [1, 2, 3]} for row in good_rows(4)], SCHEMA, tmp_path)
    with pytest.raises(grace.GraceError, match="plan"):
        engine.reader.refresh()
    assert "plan" in engine.status()["failure"]
    rollback(tmp_path, first)
    assert ads_of(ask(engine)) == whole(5)
    assert engine.status()["failure"] is None


@pytest.mark.parametrize("message", ["CUDA out of memory", "a fault of the driver"])
def test_a_version_that_does_not_fit_on_the_device(tmp_path: Path, start, monkeypatch, message):
    """Capture fails for the new version: the old one, whose graphs are there, answers on."""
    build_rows(shifted(5), SCHEMA, tmp_path)
    engine = start(tmp_path)

    def no_room(*arguments: object) -> None:
        raise torch.OutOfMemoryError(message)

    with monkeypatch.context() as patch:
        patch.setattr("grace.retrieve.retriever.choose_path", no_room)
        build_rows(shifted(8), SCHEMA, tmp_path)
        with pytest.raises(torch.OutOfMemoryError):
            engine.reader.refresh()
        assert message in engine.status()["failure"]
        assert ads_of(ask(engine)) == whole(5)
    engine.reader.refresh()  # room again
    assert ads_of(ask(engine)) == whole(8)


def test_an_ad_that_another_process_paused(tmp_path: Path, start):
    """In no answer of a later batch, nor of a later version; the log of states outlives both."""
    build_rows(shifted(5), SCHEMA, tmp_path)
    engine = start(tmp_path)
    code = "import sys, grace; grace.Index.open(sys.argv[1]).pause([2])"
    subprocess.run([sys.executable, "-c", code, tmp_path], check=True)
    paused = {ad for ad in whole(5) if ad[0] != 2}
    assert ads_of(ask(engine)) == paused
    build_rows(shifted(8), SCHEMA, tmp_path)
    engine.reader.refresh()
    assert ads_of(ask(engine)) == {ad for ad in whole(8) if ad[0] != 2}
    rollback(tmp_path)
    engine.index.resume([2])
    assert ads_of(ask(engine)) == whole(5)


def test_batches_do_not_wait_for_the_disk_of_a_pause(tmp_path: Path, start):
    build_rows(shifted(5), SCHEMA, tmp_path)
    engine = start(tmp_path)
    syncing, go_on = threading.Event(), threading.Event()

    def slow_sync(descriptor: int) -> None:
        syncing.set()
        assert go_on.wait(60)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("grace.index.state_log.os.fsync", slow_sync)
        pausing = threading.Thread(target=engine.index.pause, args=([2],))
        pausing.start()
        assert syncing.wait(60)
        assert len(ads_of(ask(engine))) in (4, 5)
        go_on.set()
        pausing.join()
    assert len(ads_of(ask(engine))) == 4
