"""How long does a training step take, beside the same T5 in transformers?

The same weights, the same examples, the same optimiser (AdamW); both must have the same loss,
without dropout and in float32, before anything is timed.

- `grace`: a step as `grace train` runs it: rows of several lengths in one pass; on a GPU bfloat16,
  one CUDA graph a step.
- `transformers`: `T5ForConditionalGeneration`, unmodified, its rows padded to the longest; on a GPU
  bfloat16 autocast and fused AdamW. `transformers, compiled`: the same by `torch.compile`.

The causal model and SASRec are timed for themselves.

    python -m benchmarks.train_step --data runs/quality/data/beauty \\
        --sids runs/quality/sids/beauty-balanced-reassign.parquet --device cuda --write
"""

from __future__ import annotations

import argparse
import dataclasses
import tempfile
from collections.abc import Callable
from itertools import cycle
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from transformers import T5ForConditionalGeneration

from benchmarks import record
from grace.datasets import Sequences, load
from grace.model.t5 import save_hf
from grace.train.sequence.config import Recipe
from grace.train.sequence.draws import Draws
from grace.train.sequence.generators import Tiger
from grace.train.sequence.models import make_model, training_windows
from grace.train.sequence.processes import joined
from grace.train.sequence.sids import read_sids
from grace.train.sequence.step import Step
from grace.train.sequence.weights import Weights
from grace.train.sequence.windows import Batch

RECIPES = record.ROOT / "recipes"
MODELS = {"tiger": "tiger-beauty", "causal": "causal", "sasrec": "sasrec-beauty"}
TOLERANCE = 1e-4
"""Of the losses, relative."""


def main(arguments: list[str] | None = None) -> None:
    """Check that both agree, time them, write the result file."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", type=Path, required=True, help="prepared data set")
    parser.add_argument("--sids", type=Path, required=True, help="catalogue with its SIDs")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--batches", type=int, nargs="+", default=[256, 1024])
    parser.add_argument("--repeats", type=int, default=50, help="timed steps")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--write", action="store_true", help="write the result file")
    options = parser.parse_args(arguments)
    data = load(options.data)
    sids = read_sids(options.sids, data.item_ids)
    rows = []
    for kind in options.models:
        for batch in options.batches:
            case = f"{kind}, batch {batch}"
            for variant, step in steps_of(kind, batch, data, sids, options.device):
                rows.append(time_step(case, variant, step, batch, options))
    record.show("train_step", rows)
    if options.write:
        machine = record.machine_name() if options.device != "cpu" else "cpu"
        print(record.write("train_step", rows, machine))


def time_step(
    case: str, variant: str, step: Callable[[], object], batch: int, options: argparse.Namespace
) -> dict:
    """A row of milliseconds a step, until it is done on the device."""

    def whole() -> None:
        step()
        if options.device != "cpu":
            torch.cuda.synchronize()

    times = record.time_calls(whole, options.repeats, warmup=10)
    counts = {"examples a second": batch / np.median(times) * 1e3}
    return record.row(case, variant, "latency", "ms", **record.quantiles(times), counts=counts)


def steps_of(kind: str, batch: int, data: Sequences, sids: np.ndarray, device: str):
    """Yield variants of one training step; each call runs the next one."""
    recipe = Recipe.load(RECIPES / f"{MODELS[kind]}.toml")
    settings = dataclasses.replace(recipe.train, batch_size=batch, optimiser="adamw")
    recipe = dataclasses.replace(recipe, train=settings)
    torch.manual_seed(0)
    model = make_model(kind, recipe, data, None if kind == "sasrec" else sids, device)
    windows = training_windows(kind, data, settings.history)
    draws = Draws(windows.lengths, settings.buckets, batch, settings.micro_batch_size, 0)
    drawn = [rows.to(device) for rows in draws.epoch(0)]
    every = [
        [drawn[b][step, first:last] for b, first, last, _ in draws.pieces]
        for step in range(min(draws.steps_per_epoch, 20))
    ]
    on_device = windows.to(device)
    if kind == "tiger":
        batches = [on_device.batch(torch.cat(rows), settings.history) for rows in every]
        yield from other_steps(model, batches, settings.learning_rate, device)
    weights = Weights(model, settings)
    weights.prime()
    rooms = [piece[3] for piece in draws.pieces]
    shares = torch.tensor([1.0, 0.01], device=device)
    model.train()
    with joined(device) as processes:
        step = Step(model, weights, on_device, rooms, settings, processes)
    turns = cycle(every)
    yield "grace", lambda: step(next(turns), shares)


def other_steps(model: Tiger, batches: list[Batch], rate: float, device: str):
    """Yield the steps of a T5 with the same weights in transformers."""
    with tempfile.TemporaryDirectory() as folder:
        save_hf(model.model, folder)
        other = T5ForConditionalGeneration.from_pretrained(folder, dtype=torch.float32).to(device)
    inputs = [hugging_face_inputs(model, batch) for batch in batches]
    assert_same_loss(model, other, batches[0], inputs[0])
    other.train()
    optimiser = torch.optim.AdamW(other.parameters(), lr=rate, fused=True)
    autocast = torch.autocast(device.partition(":")[0], torch.bfloat16, enabled=device != "cpu")

    def stepper(call: Callable) -> Callable[[], None]:
        turns = cycle(inputs)

        def step() -> None:
            with autocast:
                loss = call(**next(turns)).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(other.parameters(), 1.0)
            optimiser.step()
            optimiser.zero_grad()

        return step

    yield "transformers", stepper(other)
    if device != "cpu":
        yield "transformers, compiled", stepper(torch.compile(other))


def hugging_face_inputs(model: Tiger, batch: Batch) -> dict[str, Tensor]:
    """What transformers calls the rows of a batch; empty rows have no label."""
    ids, mask = model.inputs(batch)
    labels = torch.where(batch.lengths[:, None] > 0, model.item_tokens[batch.targets], -100)
    return {"input_ids": ids, "attention_mask": mask.long(), "labels": labels}


@torch.no_grad()
def assert_same_loss(
    model: Tiger, other: torch.nn.Module, batch: Batch, inputs: dict[str, Tensor]
) -> None:
    """Stop unless both have the same loss without dropout."""
    model.eval()
    total, count = model(batch, [(len(batch.lengths), batch.items.shape[1] - 1)], 0.0)
    mine, theirs = float(total / count), float(other(**inputs).loss)
    assert abs(mine - theirs) <= TOLERANCE * theirs, f"loss {mine}, transformers' {theirs}"


if __name__ == "__main__":
    main()
