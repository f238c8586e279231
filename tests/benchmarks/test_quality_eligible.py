"""Requests with rules, and both modes with the same beams."""

from __future__ import annotations

import json
import sys

import pytest
import sequence_cases as cases

from benchmarks import quality_eligible
from grace.datasets import load
from grace.train.sequence import train_sequences


def test_everybody_may_see_the_target(tmp_path):
    data = load(cases.write_data(tmp_path, num_users=30))
    allowed = quality_eligible.draw_rules(data.num_items, 0.1)
    assert allowed.any(1).all()
    assert 0.05 < allowed.mean() < 0.2
    users = data.valid()
    chosen = quality_eligible.draw_users(len(users), 10)
    requests = quality_eligible.make_requests(users, chosen, allowed)
    assert len(requests) == len(set(chosen.tolist())) == 10
    for row, request in zip(chosen, requests, strict=True):
        assert allowed[users.targets[row], int(request["attributes"]["segment"])]
        assert request["target"] == users.item_ids[users.targets[row]]
    assert len(quality_eligible.draw_users(30, 0)) == 30


def test_exact_matching_finds_at_least_as_many_items(tmp_path, monkeypatch):
    data = cases.write_data(tmp_path / "toy", num_users=30)
    sids = cases.write_sids(tmp_path / "sids.parquet")
    run = tmp_path / "run"
    train_sequences(data, "tiger", run, cases.recipe("tiger", steps=4), sids)
    monkeypatch.setattr(quality_eligible.record, "RESULTS", tmp_path / "results")
    arguments = ["--run", run, "--data", data, "--split", "test", "--shares", "0.2", "--beams", "6"]
    monkeypatch.setattr(sys, "argv", ["quality_eligible", *map(str, arguments), "--write"])
    quality_eligible.main()
    content = json.loads((tmp_path / "results" / "cpu" / "quality_eligible.json").read_text())
    rows = {(row["variant"], row["metric"]): row["value"] for row in content["rows"]}
    for metric in ("eligible items found", "recall@10"):
        assert rows["exact", metric] > rows["valid", metric]
    assert content["rows"][0]["counts"]["users"] == 30
    log = [json.loads(line) for line in (run / "test-log.jsonl").read_text().splitlines()]
    assert [entry["by"] for entry in log] == ["quality_eligible"]


def test_a_model_without_sids_is_refused(tmp_path, monkeypatch, capsys):
    data = cases.write_data(tmp_path / "toy", num_users=30)
    train_sequences(data, "popularity", tmp_path / "run", cases.recipe("popularity"))
    arguments = ["quality_eligible", "--run", str(tmp_path / "run"), "--data", str(data)]
    monkeypatch.setattr(sys, "argv", arguments)
    with pytest.raises(SystemExit):
        quality_eligible.main()
    assert "has no SIDs" in capsys.readouterr().err
