"""Whole runs of sequence training: they learn, repeat, resume, and never see the test split."""

import csv
import itertools
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import safetensors.torch
import torch
from sequence_cases import (
    NUM_ITEMS,
    SIZES,
    item_id,
    item_sids,
    recipe,
    straight_walk,
    write_data,
    write_sids,
)
from torch.utils._python_dispatch import TorchDispatchMode
from typer.testing import CliRunner

import grace
import grace.train.sequence.loop as loop
from grace.cli import app
from grace.datasets import Sequences, load
from grace.errors import ConfigError, DataError, ModelError, TrainError
from grace.train.sequence import rank, train_sequences
from grace.train.sequence.models import EVERY_PLACE, GENERATORS
from grace.train.sequence.step import Step
from grace.train.state import TrainState


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = write_data(tmp_path_factory.mktemp("data"))
    write_sids(folder / "sids.parquet")
    return folder


def run(folder, out, kind="tiger", resume=False, **settings):
    sids = folder / "sids.parquet" if kind in GENERATORS else None
    return train_sequences(folder, kind, out, recipe(kind, **settings), sids, resume)


def metrics(out, *leave_out):
    with open(out / "metrics.csv") as file:
        rows = list(csv.DictReader(file))
    return [row for row in rows if row["metric"] not in ("seconds", "steps_per_s", *leave_out)]


def weights(out):
    return safetensors.torch.load_file(out / "best" / "model.safetensors")


def assert_same(first, second):
    assert metrics(first) == metrics(second)
    left, right = weights(first), weights(second)
    assert left.keys() == right.keys()
    assert all(torch.equal(left[name], right[name]) for name in left)


def test_a_run_learns_and_its_folder_says_what_it_was(folder, tmp_path):
    report = run(folder, tmp_path, "sasrec", steps=90, valid_every=45, average_decay=0.9)
    assert report.best["recall@10"] > 0.9
    rows = metrics(tmp_path)
    assert {row["split"] for row in rows} == {"train", "valid"}
    losses = [float(r["value"]) for r in rows if r["split"] == "train" and r["metric"] == "loss"]
    assert losses[-1] < losses[0] / 2
    settings = tomllib.loads((tmp_path / "config.toml").read_text())
    assert settings["train"]["steps"] == 90
    assert settings["model"] == SIZES["sasrec"]
    assert settings["run"]["model"] == "sasrec"
    assert settings["run"]["torch"] == torch.__version__
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")
    ranked = rank(tmp_path, load(folder).valid(), 10)
    hits = (ranked == load(folder).valid().targets[:, None]).any(1).mean()
    assert hits == pytest.approx(report.best["recall@10"])


@pytest.mark.parametrize("kind", ["tiger", "grace", "causal", "sasrec"])
def test_the_kept_model_ranks_as_it_was_measured(kind, folder, tmp_path):
    report = run(folder, tmp_path, kind, average_decay=0.9, optimiser="muon")
    split = load(folder).valid()
    ranked = rank(tmp_path, split, 20)
    assert ranked.shape == (60, 20)
    assert ranked.dtype == np.int64
    for row in ranked:
        found = row[row >= 0]
        assert len(set(found.tolist())) == len(found)
    place = (ranked == split.targets[:, None]) @ np.arange(1, 21)
    for k in (1, 5, 10, 20):
        recall = ((place > 0) & (place <= k)).mean()
        assert recall == pytest.approx(report.best[f"recall@{k}"])


def test_popularity_ranks_by_training_counts(folder, tmp_path):
    run(folder, tmp_path, "popularity")
    counts = np.bincount(load(folder).items, minlength=NUM_ITEMS)
    expected = sorted(range(NUM_ITEMS), key=lambda item: (-counts[item], item))
    assert rank(tmp_path, load(folder).valid(), 50)[3].tolist() == expected + [-1] * 10


@pytest.mark.parametrize("optimiser", ["adamw", "muon"])
def test_the_seed_decides_everything(optimiser, folder, tmp_path):
    settings = {"optimiser": optimiser, "drop_history": 0.3, "label_smoothing": 0.1}
    run(folder, tmp_path / "a", **settings)
    torch.rand(5)
    run(folder, tmp_path / "b", **settings)
    assert_same(tmp_path / "a", tmp_path / "b")
    run(folder, tmp_path / "c", seed=1, **settings)
    assert metrics(tmp_path / "a") != metrics(tmp_path / "c")


@pytest.mark.parametrize("stopped_in", ["_validate", "_save"])
@pytest.mark.parametrize(
    ("kind", "optimiser"), [("tiger", "adamw"), ("tiger", "muon"), ("causal", "adamw")]
)
def test_a_stopped_and_resumed_run_repeats_the_straight_one(
    stopped_in, kind, optimiser, folder, tmp_path, monkeypatch
):
    settings = {"optimiser": optimiser, "average_decay": 0.9, "weight_decay": 0.1,
                "drop_history": 0.2 if kind == "tiger" else 0.0, "steps": 14}  # fmt: skip
    run(folder, tmp_path / "straight", kind, **settings)
    original, calls = getattr(loop._Run, stopped_in), []

    def stop(self):
        calls.append(self)
        if len(calls) == 3:
            raise KeyboardInterrupt
        original(self)

    monkeypatch.setattr(loop._Run, stopped_in, stop)
    with pytest.raises(KeyboardInterrupt):
        run(folder, tmp_path / "stopped", kind, **settings)
    monkeypatch.undo()
    torch.rand(3)
    run(folder, tmp_path / "stopped", kind, resume=True, **settings)
    assert_same(tmp_path / "straight", tmp_path / "stopped")


def test_a_run_goes_on_only_as_itself(folder, tmp_path):
    run(folder, tmp_path)
    with pytest.raises(TrainError, match="holds a run; pass --resume"):
        run(folder, tmp_path)
    with pytest.raises(TrainError, match=r"had another \[train\] learning_rate"):
        run(folder, tmp_path, resume=True, learning_rate=0.5)
    report = run(folder, tmp_path, resume=True)  # nothing is left to do
    assert report.steps == 12


@pytest.mark.parametrize("optimiser", ["adamw", "muon"])
def test_a_run_of_another_version_is_refused_and_left_as_it_was(optimiser, folder, tmp_path):
    run(folder, tmp_path, "sasrec", steps=4, optimiser=optimiser)
    state = TrainState.load(tmp_path / "checkpoints")
    del state.model["places"]  # which earlier versions did not keep
    state.save(tmp_path / "checkpoints")
    (tmp_path / "config.toml").write_text("of that version")
    with pytest.raises(TrainError, match=r"another version of this program: the place of .* None"):
        run(folder, tmp_path, "sasrec", resume=True, steps=4, optimiser=optimiser)
    assert (tmp_path / "config.toml").read_text() == "of that version"


def test_micro_batches_make_the_same_run(folder, tmp_path):
    whole = {"kind": "sasrec", "steps": 8}
    run(folder, tmp_path / "whole", **whole)
    plain = dict(SIZES["sasrec"])
    SIZES["sasrec"]["dropout"] = 0.0  # whose random numbers depend on shapes
    try:
        run(folder, tmp_path / "one", **whole)
        run(folder, tmp_path / "many", **whole, micro_batch_size=3)
    finally:
        SIZES["sasrec"].update(plain)
    for left, right in zip(metrics(tmp_path / "one"), metrics(tmp_path / "many"), strict=True):
        if left["split"] == "train":
            assert float(left["value"]) == pytest.approx(float(right["value"]), rel=1e-4)


class Operations(TorchDispatchMode):
    """Records what a step calls."""

    def __init__(self):
        super().__init__()
        self.names = set()

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        self.names.add(operation.overloadpacket.__name__)
        return operation(*args, **(kwargs or {}))


@pytest.mark.parametrize("kind", ["tiger", "grace", "causal", "sasrec"])
@pytest.mark.parametrize("optimiser", ["adamw", "muon"])
def test_a_step_neither_waits_for_the_device_nor_feeds_it(
    kind, optimiser, folder, tmp_path, monkeypatch
):
    operations, original = Operations(), Step._run

    def recorded(self, rows, shares):
        with operations:
            return original(self, rows, shares)

    monkeypatch.setattr(Step, "_run", recorded)
    dropped = 0.0 if kind in EVERY_PLACE else 0.1
    settings = {"drop_history": dropped, "label_smoothing": 0.1}
    run(folder, tmp_path, kind, steps=1, optimiser=optimiser, average_decay=0.9, **settings)
    assert "_log_softmax" in operations.names or kind in EVERY_PLACE
    # Reading a number on the host, shapes from data, tensors from the host: none can be captured.
    waits = {
        "_local_scalar_dense",
        "nonzero",
        "masked_select",
        "unique",
        "lift_fresh",
        "is_nonzero",
    }
    assert not operations.names & waits


def test_training_stops_when_nothing_improves(folder, tmp_path):
    # A rate this small changes no ranking, so the first validation stays the best.
    report = run(folder, tmp_path, "sasrec", steps=400, learning_rate=1e-12, patience=2)
    assert report.steps == 12
    assert report.best_step == 4


def test_a_loss_that_is_not_finite_stops_the_run(folder, tmp_path):
    with pytest.raises(TrainError, match=r"the training loss became (nan|inf).* in step \d+"):
        run(folder, tmp_path, "sasrec", learning_rate=1e30, max_gradient_norm=1e30, steps=50)
    assert not (tmp_path / "best").exists() or np.isfinite(weights(tmp_path)["items.weight"]).all()


def test_no_test_item_touches_training_or_selection(tmp_path, monkeypatch):
    marker = NUM_ITEMS - 1
    runs = []
    for test_item in (None, marker):
        folder = write_data(tmp_path / str(test_item), test_item=test_item)
        write_sids(folder / "sids.parquet")
        opened = []
        read = pq.read_table

        def guarded(path, *args, opened=opened, read=read, **kwargs):
            opened.append(Path(path).name)
            if Path(path).name == "test.parquet":
                raise AssertionError("training opened the test split")
            return read(path, *args, **kwargs)

        monkeypatch.setattr(pq, "read_table", guarded)
        for kind in SIZES:
            run(folder, tmp_path / f"{kind}-{test_item}", kind, steps=4)
        monkeypatch.undo()
        assert "valid.parquet" in opened
        runs.append([metrics(tmp_path / f"{kind}-{test_item}") for kind in SIZES])
    assert runs[0] == runs[1]  # whatever the test split holds
    (folder / "test.parquet").unlink()
    run(folder, tmp_path / "without", "sasrec", steps=4)
    assert isinstance(load(folder), Sequences)
    with pytest.raises(DataError, match=r"test\.parquet"):
        load(folder).test()


def test_two_processes_train_like_one_with_twice_the_batch(folder, tmp_path):
    text = """
[model]
model_dim = 16
num_layers = 1
ffn_dim = 32
dropout = 0.0
[train]
history = 5
steps = 6
valid_every = 3
log_every = 1
buckets = 2
learning_rate = 0.01
batch_size = %d
"""
    (tmp_path / "two.toml").write_text(text % 8)
    (tmp_path / "one.toml").write_text(text % 16)
    options = ["train", "--data", str(folder), "--model", "sasrec"]
    root = Path(__file__).parents[2]
    environment = os.environ | {"PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone",
               "--nproc-per-node", "2", "-m", "grace"]  # fmt: skip
    subprocess.run(
        [*command, *options, "--config", tmp_path / "two.toml", "--out", tmp_path / "two"],
        check=True, env=environment, capture_output=True, timeout=120,
    )  # fmt: skip
    alone = [*options, "--config", str(tmp_path / "one.toml"), "--out", str(tmp_path / "one")]
    assert CliRunner().invoke(app, alone).exit_code == 0
    one, two = metrics(tmp_path / "one"), metrics(tmp_path / "two")
    assert len(one) == len(two)
    for left, right in zip(one, two, strict=True):
        assert [left[c] for c in ("step", "split", "metric")] == [
            right[c] for c in ("step", "split", "metric")
        ]
        if left["split"] == "train":
            assert float(left["value"]) == pytest.approx(float(right["value"]), rel=1e-4)
    first, second = weights(tmp_path / "one"), weights(tmp_path / "two")
    for name in first:
        torch.testing.assert_close(first[name], second[name], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--data D --model sasrec --index I", "--index is of training on an index, --data of"),
        ("--data D", "--model is missing; with --data it is needed"),
        ("--model tiger", "--data is missing"),
        ("--index I --train T --valid V", "--features is missing"),
        ("", "give --index, --features, --train, --valid, or --data, --model, --sids"),
        ("--data D --model bert", "model must be one of tiger, grace, causal, sasrec, popularity"),
        ("--data D --model tiger", "model 'tiger' needs sids"),
        ("--data D --model sasrec --sids S", "model 'sasrec' takes no sids"),
        ("--data D --model sasrec", "D/items.parquet"),
    ],
)
def test_the_command_refuses_what_does_not_fit(options, message, tmp_path):
    result = CliRunner().invoke(app, ["train", *options.split(), "--out", str(tmp_path / "run")])
    assert result.exit_code == 2
    assert message in " ".join(result.output.split())


def test_the_command_trains_on_data(folder, tmp_path):
    (tmp_path / "r.toml").write_text("[train]\nsteps = 2\nhistory = 5\n[model]\nmodel_dim = 8\n")
    result = CliRunner().invoke(
        app,
        ["train", "--data", str(folder), "--model", "sasrec", "--config", str(tmp_path / "r.toml"),
         "--out", str(tmp_path / "run")],
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    assert "step 2 of 2: validation recall@10" in result.output


def test_what_cannot_be_trained_is_refused(folder, tmp_path):
    with pytest.raises(
        ConfigError, match=r"drop_history is for models that learn from cut histories"
    ):
        run(folder, tmp_path / "a", "sasrec", drop_history=0.1)
    with pytest.raises(ConfigError, match=r"mode 'graph' is for one process on a GPU"):
        run(folder, tmp_path / "b", "sasrec", mode="graph")
    with pytest.raises(ModelError, match=r"a run folder of grace train holds it"):
        rank(tmp_path, load(folder).valid(), 10)


@pytest.mark.parametrize("kind", ["tiger", "grace", "causal", "sasrec"])
def test_items_of_the_history_are_left_out_where_the_recipe_says_so(kind, tmp_path):
    folder = write_data(tmp_path, walk=straight_walk)
    write_sids(folder / "sids.parquet")
    report = run(folder, tmp_path / "run", kind, exclude_history=True, history=3)
    split = load(folder).valid()
    ranked = rank(tmp_path / "run", split, NUM_ITEMS, beam_width=NUM_ITEMS)
    for row, first, last in zip(ranked, split.offsets, split.offsets[1:], strict=False):
        history = set(split.items[first:last].tolist())  # all of it, though three items are read
        assert not history & set(row.tolist())
        found = row[: NUM_ITEMS - len(history)]
        assert (row[len(found) :] == -1).all()
        if kind == "sasrec":
            assert len(set(found.tolist())) == len(found) == NUM_ITEMS - len(history)
    top = rank(tmp_path / "run", split, 10)
    hits = (top == split.targets[:, None]).any(1).mean()
    assert hits == pytest.approx(report.best["recall@10"])


def test_items_that_come_again_are_never_left_out(folder, tmp_path):
    with pytest.raises(ConfigError, match=r"nobody takes an item twice; .* has \d+ such events"):
        run(folder, tmp_path, "sasrec", exclude_history=True)


def test_retrieval_opens_what_a_run_kept(tmp_path):
    folder = write_data(tmp_path, walk=straight_walk)
    write_sids(folder / "sids.parquet")
    run(folder, tmp_path / "run", "causal", exclude_history=True)
    split = load(folder).valid()
    ranked = rank(tmp_path / "run", split, 10, beam_width=20)
    rules: dict = {}
    ads = [{"ad_id": item_id(i), "sid": sid.tolist(), "rules": rules}
           for i, sid in enumerate(item_sids())]  # fmt: skip
    index = grace.build_index(ads, {"attributes": [{"name": "age", "kind": "range"}]})
    plan = grace.BeamPlan((1, 6, 20), 25)  # SIDs of the history take places, too
    retriever = grace.Retriever(index, tmp_path / "run" / "best", plan, "valid")
    requests = [
        {"id": user, "attributes": {},
         "features": {"history": [item_id(i) for i in split.items[first:last].tolist()]}}
        for user, (first, last) in enumerate(itertools.pairwise(split.offsets))
    ]  # fmt: skip
    for request, row in zip(requests, ranked, strict=True):
        (result,) = retriever.retrieve([request])
        seen = request["features"]["history"]
        found = [ad.ad_id for ad in result.ads if ad.ad_id not in seen]
        assert found[:10] == [item_id(i) for i in row.tolist()]


def test_a_model_ranks_only_its_own_items(folder, tmp_path):
    run(folder, tmp_path / "run", "popularity")
    other = write_data(tmp_path / "other")
    items = pq.read_table(other / "items.parquet").to_pydict()["ad_id"]
    pq.write_table(
        pq.read_table(folder / "items.parquet").slice(0).from_pydict({"ad_id": [*items, 999]}),
        other / "items.parquet",
    )
    with pytest.raises(DataError, match="ranks other items"):
        rank(tmp_path / "run", load(other).valid(), 5)


def test_degenerate_sids_never_train(folder, tmp_path):
    sids = item_sids()
    sids[:] = sids[0]
    path = write_sids(tmp_path / "s.parquet", sids)
    result = CliRunner().invoke(
        app, ["train", "--data", str(folder), "--model", "tiger", "--sids", str(path),
              "--out", str(tmp_path / "run")],
    )  # fmt: skip
    assert result.exit_code == 2
    assert "all 40 items share one" in result.output


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["tiger", "grace", "causal", "sasrec"])
@pytest.mark.parametrize("optimiser", ["adamw", "muon"])
def test_a_captured_step_is_the_eager_one(kind, optimiser, folder, tmp_path):
    losses = []
    sizes = dict(SIZES[kind])
    SIZES[kind].update({name: 0.0 for name in sizes if name.startswith("dropout")})
    try:
        for mode in ("eager", "graph"):
            out = tmp_path / mode
            settings = recipe(kind, mode=mode, precision="float32", optimiser=optimiser,
                              average_decay=0.9)  # fmt: skip
            sids = None if kind == "sasrec" else folder / "sids.parquet"
            train_sequences(folder, kind, out, settings, sids, device="cuda")
            losses.append([float(row["value"]) for row in metrics(out) if row["metric"] == "loss"])
    finally:
        SIZES[kind].update(sizes)
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)


@pytest.mark.gpu
@pytest.mark.parametrize(("precision", "bound"), [("float32", 1e-3), ("bfloat16", 2e-2)])
def test_a_t5_learns_on_a_gpu_as_on_a_cpu(precision, bound, folder, tmp_path):
    """Its attention there is another kernel, with a gradient of the bias of its own."""
    losses = []
    sizes = dict(SIZES["tiger"])
    SIZES["tiger"].update(dropout_rate=0.0)
    try:
        for device, accuracy in (("cpu", "float32"), ("cuda", precision)):
            out = tmp_path / device
            settings = recipe("tiger", precision=accuracy, log_every=1)
            train_sequences(folder, "tiger", out, settings, folder / "sids.parquet", device=device)
            losses.append([float(row["value"]) for row in metrics(out) if row["metric"] == "loss"])
    finally:
        SIZES["tiger"].update(sizes)
    assert losses[1] == pytest.approx(losses[0], rel=bound)
