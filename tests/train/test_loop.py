import json
import math

import numpy as np
import pytest
import torch
from train_cases import (
    INDEX,
    SPEC,
    curve,
    features,
    run_config,
    train_rows,
    valid_rows,
    walk,
    weights,
    write_jsonl,
)

import grace.train.loop as loop
from grace import BeamPlan, Retriever
from grace.errors import ConfigError, DataError, TrainError
from grace.model import load_model
from grace.train import train


def run(out, resume=False, model=None, rows=None, valid=None, **settings):
    return train(
        INDEX, SPEC, rows or train_rows(), valid or valid_rows(), out,
        run_config(model, **settings), resume,
    )  # fmt: skip


def test_training_learns_and_the_run_folder_serves(tmp_path):
    settings = {"epochs": 12, "cuts_per_row": 8, "learning_rate": 1e-2}
    report = run(tmp_path, rows=train_rows(200), **settings)
    assert report.best["valid_loss"] < report.history[0]["valid_loss"] / 4
    assert report.best["valid_recall"] == 1.0
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == report.history
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")

    retriever = Retriever(INDEX, str(tmp_path), BeamPlan((1, 8, 8), 8))
    requests = [{"id": str(u), "attributes": {}, "features": features(u, 9)} for u in range(40)]
    found = [[ad.ad_id for ad in r.ads[:10]] for r in retriever.retrieve(requests)]
    assert all(walk(u, 10)[-1] in ads for u, ads in enumerate(found))


def test_a_stopped_and_resumed_run_repeats_the_straight_one(tmp_path, monkeypatch):
    settings = {"epochs": 6, "model": {"dropout": 0.2}, "patience": 6}
    straight = run(tmp_path / "straight", **settings)

    validate, calls = loop.validate, []

    def stop(*arguments):
        calls.append(arguments)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return validate(*arguments)

    monkeypatch.setattr(loop, "validate", stop)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "stopped", **settings)
    monkeypatch.undo()
    torch.rand(3)  # a resumed run must not depend on the process's own random numbers
    resumed = run(tmp_path / "stopped", resume=True, **settings)

    assert curve(resumed.history) == curve(straight.history)
    assert len(calls) == 4
    first, second = weights(tmp_path / "straight"), weights(tmp_path / "stopped")
    assert all(np.array_equal(first[name], second[name]) for name in first)
    again = run(tmp_path / "stopped", resume=True, **settings)  # nothing is left to do
    assert again.history == resumed.history


@pytest.mark.parametrize("written", ["save_model", "draw_curve"])
def test_a_run_killed_between_its_files_goes_on_alike(tmp_path, monkeypatch, written):
    straight = run(tmp_path / "straight", epochs=3, patience=3)
    original, calls = getattr(loop, written), []

    def stop(*arguments):
        original(*arguments)
        calls.append(arguments)
        if len(calls) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(loop, written, stop)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "killed", epochs=3, patience=3)
    monkeypatch.undo()
    load_model(tmp_path / "killed")
    resumed = run(tmp_path / "killed", resume=True, epochs=3, patience=3)
    assert curve(resumed.history) == curve(straight.history)


def test_the_loss_does_not_depend_on_micro_batches(tmp_path):
    losses = [
        [record["train_loss"] for record in run(tmp_path / str(m), micro_batch_size=m).history]
        for m in (64, 17, 1)
    ]
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-4)
    np.testing.assert_allclose(losses[2], losses[0], rtol=1e-4)


def test_training_leaves_the_random_numbers_of_the_process_alone(tmp_path):
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    run(tmp_path, epochs=1)
    assert torch.equal(torch.rand(1), expected)


def test_fewer_examples_than_a_batch(tmp_path):
    report = run(tmp_path, rows=train_rows(1, 2), valid=valid_rows(1, 2), batch_size=1000)
    assert report.history[0]["examples"] == 1
    assert math.isfinite(report.best["valid_loss"])


def test_the_best_epoch_is_kept_and_patience_ends_the_run(tmp_path, monkeypatch):
    losses = iter([3.0, 2.0, 2.5, 2.0, 2.2, 1.0])
    saved = []
    monkeypatch.setattr(
        loop, "validate", lambda *a: loop_scores(next(losses))
    )  # fmt: skip
    save_model = loop.save_model
    monkeypatch.setattr(
        loop, "save_model", lambda model, out: (saved.append(1), save_model(model, out))
    )
    report = run(tmp_path, epochs=9, patience=3)
    assert [record["valid_loss"] for record in report.history] == [3.0, 2.0, 2.5, 2.0, 2.2]
    assert report.best["epoch"] == 2
    assert len(saved) == 2


def loop_scores(loss: float):
    from grace.train.recall import Scores

    return Scores(loss=loss, recall=0.5)


def test_a_loss_that_is_not_finite_stops_the_run(tmp_path):
    with pytest.raises(TrainError, match=r"the loss became (nan|inf) in epoch \d+, step \d+, at a"):
        run(tmp_path, learning_rate=1e30, max_gradient_norm=1e30, epochs=5)


def test_a_folder_with_a_run_is_not_overwritten_and_only_the_same_run_goes_on(tmp_path):
    run(tmp_path, epochs=1)
    with pytest.raises(TrainError, match="holds a run; pass --resume"):
        run(tmp_path, epochs=1)
    for changed, name in (
        (
            {"epochs": 2},
            r"\[train\] epochs: it was 1, now it is 2; start a new run in another folder",
        ),
        ({"model": {"ffn_dim": 8}}, r"\[model\] ffn_dim: it was 16, now it is 8"),
        ({"rows": train_rows(39)}, "training data"),
        ({"valid": valid_rows(39)}, "validation data"),
    ):
        with pytest.raises(TrainError, match=f"the run to resume had another {name}"):
            run(tmp_path, resume=True, **({"epochs": 1} | changed))
    (tmp_path / "resume.pt").write_bytes((tmp_path / "resume.pt").read_bytes()[:1000])
    with pytest.raises(TrainError, match=r"resume\.pt: damaged"):
        run(tmp_path, resume=True, epochs=1)


def test_unknown_ads_are_counted(tmp_path):
    rows = [*train_rows(), {"features": {}, "target": 999},
            {"features": {"history": [{"ad_id": 1}, {"ad_id": 777}, {"ad_id": 2}]}}]  # fmt: skip
    report = run(tmp_path, rows=rows, epochs=1)
    assert (report.unknown_targets, report.unknown_events) == (1, 1)


def test_wrong_input_leaves_no_run_behind(tmp_path):
    out = tmp_path / "run"
    with pytest.raises(DataError, match="row 2: a validation row needs a `target`"):
        run(out, valid=[valid_rows(1)[0], train_rows(1)[0]])
    with pytest.raises(ConfigError, match=r"vocab_size must be at least 5 \(the index's largest"):
        run(out, model={"vocab_size": 4})
    with pytest.raises(ConfigError, match="num_levels is the index's, 3, got 2"):
        run(out, model={"num_levels": 2})
    assert not out.exists()


def test_a_larger_vocabulary_is_allowed(tmp_path):
    run(tmp_path, model={"vocab_size": 9}, epochs=1)
    assert load_model(tmp_path).config.vocab_size == 9


def test_files_and_rows_in_memory_train_alike(tmp_path):
    files = [write_jsonl(tmp_path / f"{name}.jsonl", rows)
             for name, rows in (("t", train_rows()), ("v", valid_rows()))]  # fmt: skip
    from_files = run(tmp_path / "a", rows=files[0], valid=files[1], epochs=1)
    assert curve(from_files.history) == curve(run(tmp_path / "b", epochs=1).history)


@pytest.mark.parametrize("device", ["foo", "meta"])
def test_a_device_that_cannot_compute_is_refused_before_any_work(tmp_path, device):
    with pytest.raises(ConfigError, match=f"device: cannot use '{device}'"):
        train(INDEX, SPEC, tmp_path / "none", tmp_path / "none", tmp_path / "run", device=device)
    assert list(tmp_path.iterdir()) == []


def test_sizes_that_no_memory_holds_are_named(tmp_path, monkeypatch):
    with pytest.raises(ConfigError, match=r"not enough memory; .*: vocab_size 2147483647, "):
        run(tmp_path / "run", model={"vocab_size": 2**31 - 1, "model_dim": 65_536})
    assert not (tmp_path / "run").exists()

    def fail(*_):
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory")

    monkeypatch.setattr(loop, "sid_loss", fail)
    with pytest.raises(ConfigError, match=r"micro_batch_size 64, .*max_length 5 of history; Def"):
        run(tmp_path / "run")


def test_a_beam_wider_than_the_trie_reserves_no_more_than_the_trie(tmp_path):
    wide = run(tmp_path / "wide", epochs=1, beam_width=10**9)
    assert curve(wide.history) == curve(
        run(tmp_path / "all", epochs=1, beam_width=INDEX.num_sids).history
    )
