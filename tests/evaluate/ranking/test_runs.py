"""Runs on a prepared data set: which splits are opened, what is written, what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import harness
import numpy as np
import pytest
import sequence_cases as cases

from grace.datasets import load
from grace.errors import ConfigError, DataError
from grace.evaluate.ranking import evaluate_runs
from grace.train.sequence import train_sequences


def fake_run(folder: Path, name: str) -> Path:
    """A folder that looks like a run's."""
    (folder / name / "best").mkdir(parents=True)
    (folder / name / "best" / "weights").write_text(name)
    return folder / name


def target_at(place: int):
    """A model that puts the target at a place, and twice."""

    def rank(run, users, depth):
        draws = np.random.default_rng(0).random((len(users), cases.NUM_ITEMS))
        draws[np.arange(len(users)), users.targets] = 2  # the target comes last
        ranked = np.argsort(draws, axis=1)[:, :-2]
        return np.insert(ranked, [place - 1, place - 1], users.targets[:, None], axis=1)

    return rank


def no_sids(run):
    return None


@pytest.fixture
def data(tmp_path):
    return load(cases.write_data(tmp_path / "toy", num_users=60))


def test_numbers_files_and_groups(data, tmp_path):
    runs = [fake_run(tmp_path, "a"), fake_run(tmp_path, "b")]
    found = evaluate_runs(data, [[run] for run in runs], "valid", target_at(3), no_sids)
    every = found.quality["all"]
    assert every["recall@1"].value == 0
    assert every["recall@5"].value == every["recall@20"].value == 1
    assert every["ndcg@10"].by_seed == (0.5, 0.5)
    assert every["mrr@20"].value == pytest.approx(1 / 3)
    assert found.repeated == 2 * 60
    groups = found.quality["cold"]["ndcg@5"].num_users, found.quality["warm"]["ndcg@5"].num_users
    assert sum(groups) == found.num_users == 60
    assert min(groups) > 0
    found.save(tmp_path / "report.json")
    assert json.loads((tmp_path / "report.json").read_text())["split"] == "valid"


def test_validation_never_opens_the_test_split(data, tmp_path):
    (data.folder / "test.parquet").write_text("not to be opened")
    run = fake_run(tmp_path, "a")
    evaluate_runs(data, [[run]], "valid", target_at(1), no_sids)
    assert not (run / "test-log.jsonl").exists()
    with pytest.raises(DataError):
        evaluate_runs(data, [[run]], "test", target_at(1), no_sids)


def test_every_test_run_is_logged_also_one_that_fails(data, tmp_path):
    first, second = fake_run(tmp_path, "a"), fake_run(tmp_path, "b")

    def fail(run, users, depth):
        raise RuntimeError

    with pytest.raises(RuntimeError):
        evaluate_runs(data, [[first]], "test", fail, no_sids)
    evaluate_runs(data, [[first]], "test", target_at(2), no_sids)
    evaluate_runs(data, [[first, second]], "test", target_at(2), no_sids)
    log = [json.loads(line) for line in (first / "test-log.jsonl").read_text().splitlines()]
    assert [entry["event"] for entry in log] == ["opened"] + 2 * ["opened", "measured"]
    assert log[2]["recall@10"] == 1
    assert log[3]["fused_with"] == [str(second)]
    assert len((second / "test-log.jsonl").read_text().splitlines()) == 2
    (first / "best" / "weights").write_text("changed since")
    evaluate_runs(data, [[first]], "test", target_at(2), no_sids)
    last = json.loads((first / "test-log.jsonl").read_text().splitlines()[-1])
    assert last["best"] != log[0]["best"]


def test_fusion_is_chosen_on_validation_and_kept_on_test(data, tmp_path):
    """The second model is right on validation and wrong on test: its weight stays."""
    first, second = fake_run(tmp_path, "a"), fake_run(tmp_path, "b")

    def rank(run, users, depth):
        good = run == (second if users.name == "valid" else first)
        return target_at(1 if good else 15)(run, users, depth)

    found = evaluate_runs(data, [[first, second]], "test", rank, no_sids)
    assert found.fusion.weights[1] > 0.5
    assert found.quality["all"]["recall@1"].value < 0.5


def test_lists_are_made_once_for_the_same_weights_users_and_settings(data, tmp_path):
    run, calls = fake_run(tmp_path, "a"), []

    def rank(run, users, depth):
        calls.append(users.name)
        return target_at(2)(run, users, depth)

    first = evaluate_runs(data, [[run]], "valid", rank, no_sids)
    assert evaluate_runs(data, [[run]], "valid", rank, no_sids) == first
    assert calls == ["valid"]
    evaluate_runs(data, [[run]], "valid", rank, no_sids, ranked_with={"beam_width": 7})
    (run / "lists-valid.npz").write_bytes(b"torn")
    evaluate_runs(data, [[run]], "valid", rank, no_sids)
    (run / "best" / "weights").write_text("other")
    evaluate_runs(data, [[run]], "valid", rank, no_sids)
    assert calls == ["valid"] * 4


def test_dropping_the_history_moves_the_rest_up(data, tmp_path):
    run = fake_run(tmp_path, "a")

    def history_first(run, users, depth):
        ranked = np.full((len(users), depth), -1, np.int64)
        ranked[:, 0] = users.items[users.offsets[1:] - 1]
        ranked[:, 1] = users.targets
        return ranked

    def measured(drop):
        found = evaluate_runs(data, [[run]], "valid", history_first, no_sids, drop_history=drop)
        return found.quality["all"]["recall@1"].value

    valid = data.valid()
    new = [
        target not in valid.items[first:last]
        for target, first, last in zip(
            valid.targets, valid.offsets[:-1], valid.offsets[1:], strict=True
        )
    ]
    assert 0 < np.mean(new) < 1  # who takes an item again is lost where the history goes out
    assert measured(False) < measured(True)
    assert measured(True) == pytest.approx(np.mean(new))


def test_wrong_questions_are_refused(data, tmp_path):
    run = fake_run(tmp_path, "a")
    with pytest.raises(ConfigError, match="split must be one of valid, test, got 'train'"):
        evaluate_runs(data, [[run]], "train", target_at(1), no_sids)
    with pytest.raises(ConfigError, match="as many runs to fuse for each seed"):
        evaluate_runs(data, [[run], [run, run]], "valid", target_at(1), no_sids)
    with pytest.raises(DataError, match="holds no best"):
        evaluate_runs(data, [[tmp_path]], "valid", target_at(1), no_sids)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A data set and runs of it: a generator's and the popularity baseline's."""
    folder = tmp_path_factory.mktemp("trained")
    data = cases.write_data(folder / "toy", num_users=60, test_item=1)
    sids = cases.write_sids(folder / "sids.parquet")
    train_sequences(data, "tiger", folder / "tiger", cases.recipe("tiger", steps=4), sids)
    train_sequences(data, "popularity", folder / "popularity", cases.recipe("popularity"))
    return folder


def test_the_command_measures_a_trained_run_and_a_fused_one(trained):
    common = ("--data", trained / "toy", "--split", "test")
    report = trained / "report.json"
    outcome = harness.cli("evaluate", "--run", trained / "tiger", *common, "--report", report)
    assert outcome.code == 0, outcome.err
    assert "SID neighbours" in outcome.out
    content = json.loads(report.read_text())
    assert content["tokenizer"]["num_items"] == content["num_items"] == cases.NUM_ITEMS
    assert 0 <= content["quality"]["all"]["recall@10"]["value"] <= 1
    outcome = harness.cli(
        "evaluate", "--run", trained / "tiger", "--fuse", trained / "popularity", *common,
        "--drop-history", "--report", report,
    )  # fmt: skip
    assert outcome.code == 0, outcome.err
    content = json.loads(report.read_text())
    assert len(content["fusion"]["weights"]) == 2
    assert content["history_dropped"] is True


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((), "give --index, --model, --requests, --out, or --run, --data, --split"),
        (("--run", "r", "--index", "i"), "--index is of evaluation on an index, --run of runs"),
        (("--run", "r", "--k", "5"), "--k is of evaluation on an index"),
        (("--run", "r", "--data", "d"), "--split is missing; with --data, --run it is needed"),
        (("--index", "i", "--out", "o"), "--model is missing; with --index, --out it is needed"),
        (("--split", "test", "--precision", "float32"), "--run is missing"),
        (("--run", "r", "--data", "d", "--split", "x", "--precision", "float32"), "--precision is"),
        (("--run", "r", "--run", "s", "--fuse", "t", "--data", "d", "--split", "test"),
         "--fuse: expected one for each of 2 --run, or a multiple, got 1"),
    ],
)  # fmt: skip
def test_mixed_and_half_given_options_are_refused_in_one_line(options, message):
    outcome = harness.cli("evaluate", *options)
    outcome.check_refused(message)
    assert len(outcome.err.splitlines()) == 1
