"""The training loop: epochs, validation, the best checkpoint, early stop and resumption."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from grace.decode import check_device
from grace.errors import ConfigError, DataError, TrainError
from grace.files import atomic_write
from grace.model import EncoderDecoder, FeatureSpec, ModelConfig, save_model
from grace.progress import progress
from grace.train.config import RunConfig, TrainConfig
from grace.train.examples import Examples, ExampleSet
from grace.train.hide import hide_
from grace.train.loss import num_targets, sid_loss
from grace.train.optimiser import learning_rate, make_optimiser
from grace.train.plot import draw_curve
from grace.train.recall import validate
from grace.train.rows import ExampleRows
from grace.train.state import TrainState

if TYPE_CHECKING:
    from grace.index import Index

METRICS_FILE = "metrics.jsonl"
CURVE_FILE = "curve.png"

Rows = str | os.PathLike | Iterable[Mapping[str, Any]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainReport:
    """What came of a run.

    Attributes:
        history: one record an epoch, as in `metrics.jsonl`.
        best: the record of the checkpoint that was kept.
        recall_at: k of `valid_recall`.
        unknown_targets: training and validation rows left out, as the index lacks their target.
        unknown_events: events left out of histories, as the index lacks their ad.
    """

    history: list[dict[str, Any]]
    best: dict[str, Any]
    recall_at: int
    unknown_targets: int
    unknown_events: int


def train(
    index: Index,
    features: FeatureSpec,
    train_rows: Rows,
    valid_rows: Rows,
    out: str | os.PathLike,
    config: RunConfig | None = None,
    resume: bool = False,
    device: str = "cpu",
) -> TrainReport:
    """Fit an encoder-decoder and leave the best one, by validation loss, in a run folder.

    Args:
        index: gives ads their SIDs.
        features: the declaration; vocabularies and statistics that it leaves open are fitted.
        train_rows: JSON Lines file, or rows `{"features", "target"?}`.
        valid_rows: the same, each with a target. Their targets must not be in the training rows.
        out: the run folder; afterwards `grace.model.load_model` reads it.
        config: sizes and settings; by default those of `RunConfig()`.
        resume: go on where the run in `out` stopped, to the same numbers as if it had not. Without
            a run there, start one.
        device: where the model runs.

    Raises:
        TrainError: if `out` holds a run and `resume` is False, or another run and it is True; if no
            target is left; if the loss is no longer finite.
        DataError: if a row is wrong.
        ConfigError: if the sizes do not fit the index or memory, or the device cannot be used.
    """
    check_device(device)
    config, out = config or RunConfig(), Path(out)
    state = TrainState.load(out)
    if state is not None and not resume:
        raise TrainError(f"{out}: holds a run; pass --resume to go on, or name another folder")
    rows, held_out = ExampleRows.read(train_rows), ExampleRows.read(valid_rows)
    for number, target in zip(held_out.numbers, held_out.targets, strict=True):
        if target is None:
            raise DataError(f"{held_out.source}: row {number}: a validation row needs a `target`")
    features = rows.fit(features)
    model_config = config.model_config(index.num_levels, index.vocab_size)
    with _naming_sizes(model_config, features, config.train):
        _check_memory(model_config, features)
        training = ExampleSet.build(rows, features, index)
        validation = ExampleSet.build(held_out, features, index)
    identity = {
        **{f"[model] {name}": size for name, size in dataclasses.asdict(model_config).items()},
        **{f"[train] {name}": value for name, value in dataclasses.asdict(config.train).items()},
        "index version": index.version,
        "training data": training.digest(),
        "validation data": validation.digest(),
        "features.yaml": hashlib.sha256(json.dumps(features.to_dict()).encode()).hexdigest(),
    }
    out.mkdir(parents=True, exist_ok=True)
    # The run has its own random numbers, and leaves the caller's as they were.
    with torch.random.fork_rng(), _naming_sizes(model_config, features, config.train):
        torch.manual_seed(config.train.seed)
        model = EncoderDecoder(model_config, features).to(device)
        run = _Run(model, training, validation, index, config.train, device, out, identity)
        if state is not None:
            state.check_identity(identity)
            run.restore(state)
        run.train()
    return TrainReport(
        history=run.history,
        best=run.best,
        recall_at=config.train.recall_at,
        unknown_targets=training.unknown_targets + validation.unknown_targets,
        unknown_events=training.unknown_events + validation.unknown_events,
    )


@contextmanager
def _naming_sizes(model: ModelConfig, features: FeatureSpec, config: TrainConfig) -> Iterator[None]:
    """Say which sizes ask for memory when there is none."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        reason = " ".join(str(error).split())
        wording = ("allocate", "out of memory", "overflow")
        if isinstance(error, RuntimeError) and not any(word in reason for word in wording):
            raise
        names = ("vocab_size", "model_dim", "ffn_dim", "num_context_tokens")
        sizes = [f"{name} {getattr(model, name)}" for name in names]
        sizes += [f"{name} {getattr(config, name)}"
                  for name in ("micro_batch_size", "targets_per_cut", "beam_width")]  # fmt: skip
        sizes += [f"max_length {field.max_length} of {field.name}"
                  for field in features.fields if hasattr(field, "max_length")]  # fmt: skip
        raise ConfigError(
            f"there is not enough memory; make some of these smaller: {', '.join(sizes)}; {reason}"
        ) from None


def _check_memory(config: ModelConfig, features: FeatureSpec) -> None:
    """Raise MemoryError for a model larger than the machine, before it takes a byte."""
    with torch.random.fork_rng(), torch.device("meta"):
        parameters = EncoderDecoder(config, features).parameters()
    needed = sum(parameter.numel() * parameter.element_size() for parameter in parameters)
    present = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if needed > present:
        raise MemoryError(f"its weights take {needed:.1e} bytes, the machine has {present:.1e}")


class _Run:
    """One run: everything that the epochs share."""

    def __init__(
        self,
        model: EncoderDecoder,
        training: ExampleSet,
        validation: ExampleSet,
        index: Index,
        config: TrainConfig,
        device: str,
        out: Path,
        identity: dict[str, Any],
    ):
        self.model = model
        self.training = training
        self.validation = validation
        self.index = index
        self.config = config
        self.device = device
        self.out = out
        self.identity = identity
        self.optimiser = make_optimiser(model, config)
        self.history: list[dict[str, Any]] = []

    @property
    def best(self) -> dict[str, Any]:
        """The record with the smallest validation loss, the earlier of two equal ones."""
        return min(self.history, key=lambda record: record["valid_loss"])

    @property
    def is_over(self) -> bool:
        """Whether all epochs are done, or the last few brought nothing."""
        done = len(self.history)
        if not done:
            return False
        return done >= self.config.epochs or done - self.best["epoch"] >= self.config.patience

    def restore(self, state: TrainState) -> None:
        """Go back to a stopped run's last whole epoch."""
        self.model.load_state_dict(state.model)
        self.optimiser.load_state_dict(state.optimiser)
        self.history = state.history

    def train(self) -> None:
        """Run the epochs that are left."""
        drawn = self._draw(self._rng(1))
        steps_per_epoch = math.ceil(len(drawn) / self.config.batch_size)
        with progress("training", self.config.epochs * steps_per_epoch) as advance:
            advance(len(self.history) * steps_per_epoch)
            while not self.is_over:
                self._run_epoch(len(self.history) + 1, steps_per_epoch, advance)

    def _run_epoch(self, epoch: int, steps_per_epoch: int, advance: Callable[[int], None]) -> None:
        started = time.perf_counter()
        rng = self._rng(epoch)
        drawn = self._draw(rng)
        torch.manual_seed(int(rng.integers(2**63)))  # of dropout
        hiding = torch.Generator().manual_seed(int(rng.integers(2**63)))
        self.model.train()
        loss, count = 0.0, 0
        for i in range(steps_per_epoch):
            step = (epoch - 1) * steps_per_epoch + i
            rate = learning_rate(self.config, step, self.config.epochs * steps_per_epoch)
            chosen = slice(i * self.config.batch_size, (i + 1) * self.config.batch_size)
            batch_loss, batch_count = self._step(drawn, chosen, rate, hiding)
            if not math.isfinite(batch_loss):
                raise TrainError(
                    f"the loss became {batch_loss} in epoch {epoch}, step {step}, at a learning "
                    f"rate of {rate:.2e}; lower learning_rate or max_gradient_norm"
                )
            loss, count = loss + batch_loss, count + batch_count
            advance(1)
        self._finish_epoch(epoch, loss / count, rate, len(drawn), started)

    def _step(
        self, drawn: Examples, chosen: slice, rate: float, hiding: torch.Generator
    ) -> tuple[float, int]:
        """Take one optimiser step; return the summed loss and the number of targets."""
        inputs, sids = self.training.inputs(drawn, chosen)
        hide_(inputs, self.model.features, self.config.hide_share, hiding)
        count = num_targets(sids)
        self.optimiser.zero_grad(set_to_none=True)
        total = 0.0
        for first in range(0, len(sids), self.config.micro_batch_size):
            part = slice(first, first + self.config.micro_batch_size)
            part_inputs = {name: tensor[part].to(self.device) for name, tensor in inputs.items()}
            part_sids = sids[part].to(self.device)
            loss = sid_loss(self.model(part_inputs, part_sids.clamp(min=0)), part_sids)
            (loss / count).backward()
            total += loss.item()
        for group in self.optimiser.param_groups:
            group["lr"] = rate
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.config.max_gradient_norm)
        self.optimiser.step()
        return total, count

    def _finish_epoch(
        self, epoch: int, train_loss: float, rate: float, num_examples: int, started: float
    ) -> None:
        """Validate and write; the state comes last, since a resumed run repeats what it lacks."""
        trained = time.perf_counter()
        config = self.config
        scores = validate(
            self.model,
            self.validation,
            self.index,
            config.recall_at,
            config.beam_width,
            config.micro_batch_size,
            self.device,
        )
        if not math.isfinite(scores.loss):
            raise TrainError(f"the validation loss became {scores.loss} in epoch {epoch}")
        record = {
            "epoch": epoch,
            "train_loss": train_loss,
            "valid_loss": scores.loss,
            "valid_recall": scores.recall,
            "learning_rate": rate,
            "examples": num_examples,
            "train_s": round(trained - started, 3),
            "valid_s": round(time.perf_counter() - trained, 3),
        }
        self.history.append(record)
        if self.best is record:
            save_model(self.model, self.out)
        with atomic_write(self.out / METRICS_FILE) as file:
            for line in self.history:
                file.write(json.dumps(line).encode() + b"\n")
        draw_curve(self.history, config.recall_at, self.out / CURVE_FILE)
        TrainState(
            identity=self.identity,
            history=self.history,
            model=self.model.state_dict(),
            optimiser=self.optimiser.state_dict(),
        ).save(self.out)

    def _rng(self, epoch: int) -> np.random.Generator:
        return np.random.default_rng([self.config.seed, epoch])

    def _draw(self, rng: np.random.Generator) -> Examples:
        return self.training.draw(rng, self.config.cuts_per_row, self.config.targets_per_cut)
