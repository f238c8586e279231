"""The whole demo on a handful of people and films."""

from __future__ import annotations

import dataclasses
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from grace.cli import app
from grace.datasets.movielens import MovieLens
from grace.decode import BeamPlan
from grace.demo import pipeline, seeds
from grace.demo.brute_force import check_against_brute_force
from grace.demo.folder import REPORT_FILE, replaced_folder
from grace.demo.measure import seed_mean
from grace.demo.pipeline import run_demo
from grace.demo.settings import DemoSettings
from grace.demo.show import next_commands, show
from grace.errors import ConfigError
from grace.index import MATCHERS, Index
from grace.model import load_model
from grace.train import RunConfig, TrainConfig

TINY = DemoSettings(
    seeds=(0, 1),
    levels=3,
    codes=8,
    plan=BeamPlan((1, 4, 8), 8),
    run=RunConfig(
        model={"model_dim": 16, "num_heads": 2, "head_dim": 8, "ffn_dim": 16},
        train=TrainConfig(epochs=1, cuts_per_row=2),
    ),
    single_requests=20,
    checked_requests=2,
)


@pytest.fixture(scope="module")
def few(movielens) -> MovieLens:
    """The first 40 people and their ratings of the first 200 films."""
    users = movielens.users[:40]
    movies = movielens.movies[:200]
    ids = {movie.movie_id for movie in movies}
    ratings = {
        user.user_id: [r for r in movielens.ratings[user.user_id] if r.movie_id in ids]
        for user in users
    }
    kept = tuple(user for user in users if len(ratings[user.user_id]) >= 5)
    return MovieLens(kept, movies, {user.user_id: ratings[user.user_id] for user in kept})


@pytest.fixture(scope="module")
def out(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("demo") / "out"


@pytest.fixture(scope="module")
def report(few, out):
    return run_demo(few, out, TINY)


def test_every_mode_is_measured_under_every_seed(report):
    assert list(report.modes) == list(MATCHERS)
    assert [run.seed for run in report.seeds] == [0, 1]
    for metrics in report.modes.values():
        assert all(len(mean.by_seed) == 2 for mean in metrics.values())
    exact = report.modes["exact"]
    assert exact["eligible SIDs"].by_seed == [1.0, 1.0]
    assert all(mean.value == 0 for name, mean in exact.items() if name.startswith("wasted beams"))


def test_seeds_deal_rules_and_models_of_their_own(report):
    first, second = report.seeds
    assert first.modes != second.modes


def test_the_folder_is_usable(report, out):
    assert {path.name for path in out.iterdir()} == {
        "catalog.jsonl", "schema.yaml", "features.yaml", "train.jsonl", "valid.jsonl",
        "requests.jsonl", "held-out.jsonl", "index", "model", REPORT_FILE,
    }  # fmt: skip
    written = json.loads((out / REPORT_FILE).read_text())
    assert written == json.loads(json.dumps(report.to_dict()))
    for command in next_commands(report, out):
        answer = CliRunner().invoke(app, command.partition("grace ")[2].split())
        assert answer.exit_code == 0, (command, answer.output)


def test_people_differ_in_why_a_film_is_refused(report):
    assert report.described
    reasons = [person.refused.split(" — ")[1] for person in report.described]
    assert len(set(reasons)) == len(reasons)
    assert all(person.shown and person.refused_place >= 1 for person in report.described)


def test_the_report_prints(report, out, capsys):
    console = Console(width=140)
    show(report, out, console)
    printed = capsys.readouterr().out
    assert "grace retrieve --index" in printed.replace("\n", " ")
    assert all(person.who in printed for person in report.described)


def test_brute_force_notices_a_film_that_is_missing(report, few, out):
    index, model = Index.open(out / "index"), load_model(out / "model")
    rows = [json.loads(line) for line in (out / "catalog.jsonl").read_text().splitlines()]
    asked = [json.loads(line) for line in (out / "requests.jsonl").read_text().splitlines()][:1]
    assert check_against_brute_force(index, model, rows, asked) > 0
    free = [dict(row, rules={}, start=None, end=None, paused=False) for row in rows]
    with pytest.raises(AssertionError, match="are not the"):
        check_against_brute_force(index, model, free, asked)


def test_a_second_run_replaces_the_first(few, tmp_path, monkeypatch):
    # In this process: another start of worker processes would only take time.
    monkeypatch.setattr(seeds, "ProcessPoolExecutor", lambda *_, **__: ThreadPoolExecutor(1))
    out = tmp_path / "out"
    out.mkdir()
    (out / REPORT_FILE).write_text("{}")
    (out / "stale").write_text("of an earlier demo")
    run_demo(few, out, dataclasses.replace(TINY, seeds=(0,), single_requests=2))
    assert not (out / "stale").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_foreign_folder_is_refused_and_left_alone(tmp_path):
    (tmp_path / "thesis.tex").write_text("x")
    with pytest.raises(ConfigError, match="holds something else"), replaced_folder(tmp_path):
        pass
    assert (tmp_path / "thesis.tex").exists()


def test_a_demo_that_fails_leaves_the_folder_as_it_was(few, tmp_path, monkeypatch):
    out = tmp_path / "out"
    out.mkdir()
    (out / REPORT_FILE).write_text("{}")

    def fail(*arguments):
        raise RuntimeError("stopped")

    monkeypatch.setattr(pipeline, "run_seeds", fail)
    with pytest.raises(RuntimeError, match="stopped"):
        run_demo(few, out, TINY)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert (out / REPORT_FILE).read_text() == "{}"


def test_a_mean_over_seeds():
    mean = seed_mean([1.0, 2.0, 3.0])
    assert mean.value == 2
    # t of 2 degrees of freedom: 4.3027; standard error 1 / sqrt(3)
    assert mean.high - mean.value == pytest.approx(4.30265 / 3**0.5, abs=1e-4)
    assert mean.value - mean.low == pytest.approx(mean.high - mean.value)
    assert seed_mean([1.0]).low is None
    assert seed_mean([1.0, None]).value is None
