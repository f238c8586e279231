"""Requests with rules, and all modes with the same beams."""

from __future__ import annotations

import json
import sys

import harness
import numpy as np
import pytest
import sequence_cases as cases

from benchmarks import quality_eligible
from benchmarks.quality_requests import (
    Generator,
    build_index,
    draw_users,
    make_requests,
    open_generator,
)
from grace import BeamPlan, Retriever
from grace.datasets import load
from grace.errors import DataError
from grace.model.folder import open_model
from grace.train.sequence import rank, train_sequences

GENERATORS = ("tiger", "grace", "causal")


def test_everybody_may_see_the_target(tmp_path):
    data = load(cases.write_data(tmp_path, num_users=30))
    allowed = quality_eligible.draw_rules(data.num_items, 0.1)
    assert all(seen.any(1).all() for seen in allowed.values())
    both = np.mean([np.outer(*pair).mean() for pair in zip(*allowed.values(), strict=True)])
    assert 0.05 < both < 0.2
    users = data.valid()
    chosen = draw_users(len(users), 10)
    generator = Generator(tmp_path, "tiger", cases.item_sids(), takes_users=True, unseen=False)
    world = quality_eligible.random_world(0.1, data.num_items, users, chosen)
    requests = make_requests(generator, users, chosen, world.people)
    assert len(requests) == len(set(chosen.tolist())) == 10
    for row, request in zip(chosen, requests, strict=True):
        for name, seen in allowed.items():
            assert seen[users.targets[row], int(request["attributes"][name])]
        assert request["target"] == users.item_ids[users.targets[row]]
    assert len(draw_users(30, 0)) == 30


@pytest.mark.parametrize("unseen", [False, True])
@pytest.mark.parametrize("kind", GENERATORS)
def test_without_rules_retrieval_ranks_as_the_run_does(kind, unseen, tmp_path):
    folder = cases.write_data(tmp_path / "toy", num_users=12, walk=cases.straight_walk)
    data, run = load(folder), tmp_path / "run"
    recipe = cases.recipe(kind, steps=4, history=12, exclude_history=unseen)
    train_sequences(folder, kind, run, recipe, cases.write_sids(tmp_path / "sids.parquet"))
    generator = open_generator(run, data)
    users = data.valid()
    requests = make_requests(generator, users, draw_users(len(users), 0))
    for request in requests:
        del request["target"]
    index = build_index(generator, data)
    plan = BeamPlan((1, 40, 40), 40)
    results = Retriever(index, open_model(run / "best"), plan).retrieve(requests)
    ranked = rank(run, users, 5, beam_width=40)
    for result, row in zip(results, users.item_ids[ranked].tolist(), strict=True):
        assert result.error is None
        assert [ad.ad_id for ad in result.ads][:5] == row


@pytest.mark.parametrize("kind", GENERATORS)
def test_exact_matching_finds_at_least_as_many_items(kind, tmp_path, monkeypatch):
    data = cases.write_data(tmp_path / "toy", num_users=30)
    sids = cases.write_sids(tmp_path / "sids.parquet")
    run = tmp_path / "run"
    train_sequences(data, kind, run, cases.recipe(kind, steps=4), sids)
    monkeypatch.setattr(quality_eligible.record, "RESULTS", tmp_path / "results")
    arguments = ["--run", run, "--data", data, "--split", "test", "--shares", "0.2", "--beams", "6"]
    monkeypatch.setattr(sys, "argv", ["quality_eligible", *map(str, arguments), "--write"])
    quality_eligible.main()
    content = json.loads((tmp_path / "results" / "cpu" / "quality_eligible.json").read_text())
    rows = {(row["variant"], row["metric"]): row["value"] for row in content["rows"]}
    assert {variant for variant, _ in rows} == set(quality_eligible.MODES)
    found = {mode: rows[mode, "eligible items found"] for mode in quality_eligible.MODES}
    assert found["valid"] < found["exact"] == max(found.values())
    assert rows["exact", "recall@10"] > rows["valid", "recall@10"]
    counts = content["rows"][0]["counts"]
    assert counts["users"] == 30
    assert counts["low"] < content["rows"][0]["value"] < counts["high"]
    log = [json.loads(line) for line in (run / "test-log.jsonl").read_text().splitlines()]
    assert [entry["by"] for entry in log] == ["quality_eligible"]


def test_the_demo_asks_with_its_people_and_rules(shared_data, tmp_path):
    movielens = shared_data / "movielens-100k"
    arguments = ("data", "prepare", "movielens", "--raw", shared_data, "--out", tmp_path / "data")
    assert harness.cli(*map(str, arguments)).code == 0
    users = load(tmp_path / "data").valid()
    chosen = draw_users(len(users), 20)
    world = quality_eligible.demo_world(movielens, users, chosen)
    assert len(world.rows) == len(users.item_ids)
    assert {"age", "gender"} <= set(world.people[0]["attributes"])
    users.targets[chosen[0]] -= 1
    with pytest.raises(DataError, match="is not made of it"):
        quality_eligible.demo_world(movielens, users, chosen)


def test_a_run_of_other_items_is_refused(tmp_path):
    folder = cases.write_data(tmp_path / "toy", num_users=30)
    sids = cases.write_sids(tmp_path / "sids.parquet")
    train_sequences(folder, "causal", tmp_path / "run", cases.recipe("causal", steps=4), sids)
    data = load(folder)
    data.item_ids[-1] += 1
    with pytest.raises(DataError, match="ranks other items"):
        open_generator(tmp_path / "run", data)


def test_a_model_without_sids_is_refused(tmp_path, monkeypatch, capsys):
    data = cases.write_data(tmp_path / "toy", num_users=30)
    train_sequences(data, "popularity", tmp_path / "run", cases.recipe("popularity"))
    arguments = ["quality_eligible", "--run", str(tmp_path / "run"), "--data", str(data)]
    monkeypatch.setattr(sys, "argv", arguments)
    with pytest.raises(SystemExit):
        quality_eligible.main()
    assert "has no SIDs" in capsys.readouterr().err
