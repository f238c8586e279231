"""The script behind docs/quality.md: jobs in order, stopped and resumed; a small run, whole."""

from __future__ import annotations

import json
import shutil
import sys
import time

import harness
import pytest

from benchmarks import quality
from benchmarks.quality_jobs import Job, Outcome, run_jobs
from benchmarks.quality_rows import PUBLISHED, log_line, rows_of

NOW = 1e9


def options(*arguments: str):
    return quality.parse_options(arguments)


def test_the_plan_has_every_job_after_what_it_needs():
    jobs = quality.plan(options("--data", "beauty", "toys"))
    names = [job.name for job in jobs]
    assert len(names) == len(set(names))
    for place, job in enumerate(jobs):
        assert set(job.needs) <= set(names[:place])
    test = next(job for job in jobs if job.name == "test-beauty-best-0-1-2")
    assert " ".join(test.arguments).count("--run") == 3
    assert "valid-beauty-best-0-1-2" in test.needs


def test_one_training_is_measured_with_and_without_the_history():
    jobs = quality.plan(options("--data", "toys", "--variants", "sasrec", "sasrec-unseen"))
    assert sum(job.name.startswith("train-") for job in jobs) == 3
    words = {job.name: job.arguments for job in jobs}
    plain, unseen = (words[f"test-toys-{name}-0-1-2"] for name in ("sasrec", "sasrec-unseen"))
    assert "--drop-history" in unseen
    runs = [[w for w in one if "quality/runs/" in w] for one in (plain, unseen)]
    assert runs[0] == runs[1]
    assert len(runs[0]) == 3
    alone = quality.plan(options("--data", "toys", "--variants", "sasrec-unseen"))
    assert sum(job.name.startswith("train-toys-sasrec-") for job in alone) == 3


def test_only_a_test_evaluation_names_the_test_split():
    cases = (("sids", set()), ("train", set()), ("valid", {"valid"}), ("test", {"valid", "test"}))
    for until, expected in cases:
        words = [word for job in quality.plan(options("--until", until)) for word in job.arguments]
        assert {word for word in words if word in ("valid", "test")} == expected


def test_a_trial_changes_its_own_runs_and_opens_validation_alone(tmp_path):
    trial = options(
        "--out", str(tmp_path), "--data", "beauty", "--variants", "best", "--trial", "wide",
        "--set", "train.beam_width=200", "train.select=recall@10", "sids.levels=4",
    )  # fmt: skip
    jobs = {job.name: job for job in quality.plan(trial)}
    assert not any(name.startswith("test-") for name in jobs)
    assert "train-beauty-best+wide-0" in jobs
    fit = jobs["sids-beauty-balanced-reassign+wide"].arguments
    assert fit[fit.index("--levels") + 1] == "4"
    recipe = (tmp_path / "recipes" / "beauty-best+wide.toml").read_text()
    assert "beam_width = 200" in recipe
    assert 'select = "recall@10"' in recipe
    with pytest.raises(SystemExit):
        options("--set", "train.steps=1")


def job(name: str, code: str, *needs: str, **more) -> Job:
    return Job(name, (code,), needs, **more)


@pytest.fixture
def python_jobs(monkeypatch, tmp_path):
    """Jobs are lines of Python instead of commands of grace."""
    fake = tmp_path / "python"
    fake.write_text(f'#!/bin/sh\nexec "{sys.executable}" -c "$3"\n')
    fake.chmod(0o755)
    monkeypatch.setattr("benchmarks.quality_jobs.sys.executable", str(fake))


def test_jobs_run_in_order_fail_alone_and_are_not_repeated(python_jobs, tmp_path):
    log = tmp_path / "order"
    note = f"open({str(log)!r}, 'a').write('%s ')"
    jobs = [
        job("a", note % "a"),
        job("bad", "raise SystemExit('no luck')"),
        job("b", note % "b", "a"),
        job("lost", note % "lost", "bad"),
    ]
    said = []
    outcome = run_jobs(jobs, tmp_path, 2, NOW, said.append)
    assert (sorted(outcome.done), outcome.failed, outcome.skipped) == (
        ["a", "b"],
        ["bad"],
        ["lost"],
    )
    assert log.read_text() == "a b "
    assert any("no luck" in line for line in said)
    assert run_jobs(jobs[:1] + jobs[2:3], tmp_path, 2, NOW, said.append).done == ["a", "b"]
    assert log.read_text() == "a b "
    (tmp_path / "done" / "a").unlink()  # what follows it is done again as well
    run_jobs(jobs[:1] + jobs[2:3], tmp_path, 2, NOW, said.append)
    assert log.read_text() == "a b a b "


def test_at_the_deadline_trainings_stop_and_what_they_have_is_measured(python_jobs, tmp_path):
    made = tmp_path / "best"
    train = f"import time, pathlib; pathlib.Path({str(made)!r}).touch(); time.sleep(60)"
    jobs = [
        job("train", train, stops=True, made=made),
        job("empty", "import time; time.sleep(60)", stops=True, made=tmp_path / "nothing"),
        job("late", "pass", stops=True),
        job("measure", "pass", "train"),
        job("cannot", "pass", "empty"),
    ]
    started = time.monotonic()
    said: list[str] = []
    outcome = run_jobs(jobs, tmp_path, 2, started + 2, said.append)
    assert time.monotonic() - started < 20
    assert any(line.startswith("failed   empty") and "before there was" in line for line in said)
    assert outcome.stopped == ["train"]
    assert outcome.done == ["measure"]
    assert outcome.failed == ["empty"]
    assert sorted(outcome.skipped) == ["cannot", "late"]
    assert not (tmp_path / "done" / "train").exists()  # a call with time goes on with it
    (tmp_path / "done" / "measure").unlink()
    again = run_jobs([jobs[0], jobs[3]], tmp_path, 2, time.monotonic(), lambda line: None)
    assert (again.stopped, again.done) == (["train"], ["measure"])


def report(value: float) -> dict:
    interval = {"low": value / 2, "high": value, "users_low": value / 2, "users_high": value}
    metric = {"value": value, **interval, "by_seed": [value, value], "num_users": 9}
    return {"num_items": 7, "quality": {"all": {"recall@10": metric, "ndcg@10": metric}}}


def test_rows_say_their_split_their_intervals_and_what_was_published():
    reports = {("beauty", "tiger", split): report(0.06) for split in ("valid", "test")}
    rows = {row["metric"]: row for row in rows_of(reports)}
    assert set(rows) == {"valid recall@10", "valid ndcg@10", "recall@10", "ndcg@10"}
    assert rows["recall@10"]["reference"]["value"] == 0.0648
    assert "reference" not in rows["valid recall@10"]
    assert rows["ndcg@10"]["counts"]["low"] == 0.03
    assert rows["ndcg@10"]["counts"]["seed 2"] == 0.06
    assert set(PUBLISHED) <= {(data, name) for data in quality.DATA for name in quality.VARIANTS}
    line = log_line("beauty", "best", "wide", ["train.beam_width=200"], report(0.06))
    assert line.startswith(
        "| beauty | best, wide | `train.beam_width=200` | 0.0600 (0.0300-0.0600)"
    )


def run_here(jobs, folder, at_once, deadline, say=print) -> Outcome:
    """`run_jobs` without processes, which take seconds to start; marks are as it leaves them."""
    outcome = Outcome([], [], [], [])
    (folder / "done").mkdir(exist_ok=True)
    for job in jobs:
        mark = folder / "done" / job.name
        if not mark.exists():
            ended = harness.cli(*job.arguments)
            assert ended.code == 0, ended.err
            mark.touch()
        outcome.done.append(job.name)
    return outcome


def test_from_raw_files_to_rows(shared_data, tmp_path, monkeypatch, capsys):
    """A tiny training on MovieLens; the second call repeats nothing."""
    (tmp_path / "recipes").mkdir()
    shutil.copy(quality.RECIPES / "sids.toml", tmp_path / "recipes")
    (tmp_path / "recipes" / "tiger-movielens.toml").write_text(
        "[model]\nd_model = 16\nd_kv = 8\nd_ff = 16\nnum_heads = 2\nnum_layers = 1\n"
        "num_decoder_layers = 1\n[train]\nsteps = 4\nvalid_every = 2\nbatch_size = 64\n"
        "history = 5\nbeam_width = 20\nvalid_users = 100\n"
    )
    monkeypatch.setattr(quality, "RECIPES", tmp_path / "recipes")
    monkeypatch.setattr(quality.record, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(quality, "run_jobs", run_here)
    work = tmp_path / "work"
    work.mkdir()
    arguments = [
        "quality", "--raw", str(shared_data), "--out", str(work), "--data", "movielens",
        "--variants", "popularity", "random-sid", "--seeds", "0", "1", "--write",
    ]  # fmt: skip
    monkeypatch.setattr(sys, "argv", arguments)
    with pytest.raises(SystemExit) as ended:
        quality.main()
    assert ended.value.code == 0
    content = json.loads((tmp_path / "results" / "cpu" / "quality.json").read_text())
    rows = {(row["variant"], row["metric"]): row for row in content["rows"]}
    assert len(rows) == 8
    popular, random = rows["popularity", "recall@10"], rows["random-sid", "recall@10"]
    assert 0 <= random["value"] < popular["value"] < 0.2
    assert popular["counts"]["users"] == 943
    log = work / "runs" / "movielens-popularity-0" / "test-log.jsonl"
    assert len(log.read_text().splitlines()) == 2
    whole = tmp_path / "results" / "cpu" / "quality" / "movielens-random-sid-test.json"
    assert json.loads(whole.read_text())["tokenizer"]["num_items"] == 1682
    with pytest.raises(SystemExit):
        quality.main()
    assert len(log.read_text().splitlines()) == 2
