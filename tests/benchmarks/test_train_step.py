"""Training steps, timed."""

from __future__ import annotations

import pytest
import sequence_cases as cases
import torch
from transformers import T5ForConditionalGeneration

from benchmarks import train_step
from grace.datasets import load
from grace.model.t5 import save_hf
from grace.train.sequence.models import make_model
from grace.train.sequence.windows import cut_windows


def test_every_model_has_its_rows(tmp_path, monkeypatch):
    written = {}
    monkeypatch.setattr(
        train_step.record, "write", lambda name, rows, machine: written.update({name: rows})
    )
    data = cases.write_data(tmp_path / "data", num_users=20)
    sids = cases.write_sids(tmp_path / "sids.parquet")
    train_step.main(
        ["--data", str(data), "--sids", str(sids), "--batches", "8", "--repeats", "1",
         "--device", "cpu", "--write"]
    )  # fmt: skip
    found = {(row["case"], row["variant"]) for row in written["train_step"]}
    assert found == {
        ("tiger, batch 8", "transformers"), ("tiger, batch 8", "grace"),
        ("causal, batch 8", "grace"), ("sasrec, batch 8", "grace"),
    }  # fmt: skip
    assert all(row["value"] > 0 for row in written["train_step"])


def test_another_loss_is_told(tmp_path):
    data = load(cases.write_data(tmp_path / "data", num_users=20))
    model = make_model("tiger", cases.recipe("tiger"), data, cases.item_sids(), "cpu")
    save_hf(model.model, tmp_path)
    other = T5ForConditionalGeneration.from_pretrained(tmp_path)
    batch = cut_windows(data, 5).to("cpu").batch(torch.tensor([0, -1, 7]), 5)
    inputs = train_step.hugging_face_inputs(model, batch)
    train_step.assert_same_loss(model, other.eval(), batch, inputs)
    with torch.no_grad():
        other.shared.weight.mul_(1.1)
    with pytest.raises(AssertionError, match="transformers'"):
        train_step.assert_same_loss(model, other, batch, inputs)
