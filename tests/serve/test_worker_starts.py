"""HTTP workers start wherever they are started, when they can, and end when they are told to."""

import asyncio
import os
import signal
import subprocess

import pytest
from web_cases import config, small_engine
from worker_cases import await_that, children, exchange, worked

from grace.errors import ConfigError
from grace.serve.app import build_app
from grace.serve.listening import bind
from grace.serve.workers import start_workers

MADE = config(http={"workers": 1})


@pytest.fixture(scope="module")
def engine():
    engine, _ = small_engine(max_admitted=8, max_batch=4)
    yield engine
    assert engine.drain(20)


def is_live(port: int) -> bool:
    return exchange(port, "GET", "/v1/health/live")[0] == 200


def kill_one() -> int:
    """Kill the only worker; the one that takes its place, which has only begun to start."""
    (first,) = children()
    os.kill(first, signal.SIGKILL)
    await_that(lambda: children() not in ([], [first]))
    return children()[0]


def test_a_folder_with_modules_of_its_own_is_no_matter(engine, tmp_path, monkeypatch):
    (tmp_path / "random.py").write_text("raise SystemExit(9)")
    monkeypatch.chdir(tmp_path)
    with worked(engine, MADE) as port:
        assert is_live(port)


def test_signals_to_all_processes_are_the_engines_even_while_a_worker_starts(engine):
    with worked(engine, MADE) as port:
        second = kill_one()
        for number in (signal.SIGINT, signal.SIGTERM):
            os.kill(second, number)
        assert is_live(port)
        assert children() == [second]


def test_a_worker_that_has_only_begun_to_start_ends_when_it_is_told_to(engine, caplog):
    with worked(engine, MADE):
        kill_one()
    assert children() == []
    assert "is killed" not in caplog.text


def test_a_worker_that_cannot_be_started_is_tried_again(engine, monkeypatch, caplog):
    start, faults = subprocess.Popen, [OSError("no room"), OSError("no room")]

    def popen(*args, **options):
        if faults:
            raise faults.pop()
        return start(*args, **options)

    with worked(engine, MADE) as port:
        monkeypatch.setattr("subprocess.Popen", popen)
        os.kill(children()[0], signal.SIGKILL)
        assert is_live(port)
    assert caplog.text.count("cannot be started: no room") == 2


def test_a_first_worker_that_cannot_be_started_ends_the_start(engine, monkeypatch):
    def popen(*args, **options):
        raise OSError("no room")

    async def start():
        app, port = build_app(engine, MADE), bind("http", "127.0.0.1", 0)
        await start_workers(1, port, engine, app, app.state.observer.metrics, MADE)

    monkeypatch.setattr("subprocess.Popen", popen)
    with pytest.raises(ConfigError, match=r"http\.workers: no room"):
        asyncio.run(start())
