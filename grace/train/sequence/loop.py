"""The training loop of sequence models: steps, the best model, early stop, resumption."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from grace.datasets import Sequences, Split
from grace.datasets import load as load_data
from grace.errors import ConfigError, TrainError
from grace.progress import progress
from grace.train.sequence.config import Recipe
from grace.train.sequence.draws import Draws
from grace.train.sequence.folder import (
    BEST,
    CHECKPOINTS,
    Row,
    code_version,
    draw_metrics,
    identity_of,
    write_config,
    write_metrics,
)
from grace.train.sequence.models import (
    EVERY_PLACE,
    GENERATORS,
    KINDS,
    Kept,
    keep_model,
    make_model,
    training_windows,
)
from grace.train.sequence.processes import Processes, joined
from grace.train.sequence.sids import read_sids
from grace.train.sequence.step import Step
from grace.train.sequence.validation import Validation
from grace.train.sequence.weights import Weights
from grace.train.sequence.windows import refuse_repeats
from grace.train.state import TrainState


@dataclasses.dataclass(frozen=True, kw_only=True)
class SequenceReport:
    """What came of a run.

    Attributes:
        steps: that were run.
        best_step: after which the model that was kept was validated.
        best: its validation metrics, by name.
    """

    steps: int
    best_step: int
    best: dict[str, float]


def train_sequences(
    data: str | os.PathLike,
    model: str,
    out: str | os.PathLike,
    recipe: Recipe | None = None,
    sids: str | os.PathLike | None = None,
    resume: bool = False,
    device: str = "cpu",
) -> SequenceReport:
    """Train a sequence model on a prepared data set; keep the best one by validation.

    Only the items, the training part and the validation split are opened. Under torchrun, every
    process calls this and trains on its share of each batch.

    Args:
        data: folder of `grace data prepare`.
        model: `tiger`, `grace`, `causal`, `sasrec` or `popularity`.
        out: the run folder; `best` in it is what `rank` reads.
        recipe: sizes and settings.
        sids: catalogue with the items' SIDs, for generators.
        resume: go on where the run in `out` stopped, to the same numbers as if it had not. Without
            a run there, start one.
        device: where the model runs.

    Raises:
        TrainError: if `out` holds a run and `resume` is False, or another run and it is True; if
            no user has two items; if the loss is no longer finite.
        DataError, CatalogError, SidError: if a file does not hold what it should, or the SIDs do
            not tell the items apart.
        ConfigError: if settings do not fit.
    """
    recipe, out = recipe or Recipe(), Path(out)
    if model not in KINDS:
        raise ConfigError(f"model must be one of {', '.join(KINDS)}, got {model!r}")
    if (sids is None) == (model in GENERATORS):
        verb = "needs" if sids is None else "takes no"
        raise ConfigError(f"model {model!r} {verb} sids, a catalogue with the items' SIDs")
    sequences = load_data(data)
    if recipe.train.exclude_history:
        refuse_repeats(sequences)
    held_out = sequences.valid()
    table = None if sids is None else read_sids(sids, sequences.item_ids)
    identity = identity_of(model, recipe, sequences, held_out, table)
    with joined(device) as processes, _own_random_numbers(processes.device):
        identity["processes"] = processes.count
        state = TrainState.load(out / CHECKPOINTS)
        if state is not None and not resume:
            raise TrainError(f"{out}: holds a run; pass --resume to go on, or name another folder")
        if state is not None:
            state.check_identity(identity)
        torch.manual_seed(recipe.train.seed)
        made = make_model(model, recipe, sequences, table, processes.device)
        run = _Run(model, made, recipe, sequences, held_out, table, out, processes, identity)
        if state is not None:
            run.take_over(state)
        if processes.number == 0:
            (out / CHECKPOINTS).mkdir(parents=True, exist_ok=True)
            about = {"model": model, "data": str(data), "device": device} | code_version()
            write_config(out, recipe, about | ({} if sids is None else {"sids": str(sids)}))
        return run.train()


def _own_random_numbers(device: str) -> contextlib.AbstractContextManager:
    """Leave the caller's random numbers as they were."""
    on_gpu = device.startswith("cuda")
    return torch.random.fork_rng(devices=[torch.cuda.current_device()] if on_gpu else [])


class _Run:
    """One run: what its steps share."""

    def __init__(
        self,
        kind: str,
        model: nn.Module,
        recipe: Recipe,
        data: Sequences,
        held_out: Split,
        sids: np.ndarray | None,
        out: Path,
        processes: Processes,
        identity: dict[str, Any],
    ):
        self.config = config = recipe.train
        self.kind, self.model, self.out = kind, model, out
        self.sids, self.item_ids = sids, data.item_ids
        self.processes, self.identity = processes, identity
        if config.drop_history and kind in (*EVERY_PLACE, "popularity"):
            raise ConfigError("drop_history is for models that learn from cut histories")
        self.validation = Validation(held_out, config, processes)
        self.rows: list[Row] = []
        self.step_number = 0
        if kind == "popularity":
            return
        windows = training_windows(kind, data, config.history)
        if not len(windows):
            raise TrainError(f"{data.folder}: no user has two items to learn from")
        self.draws = Draws(
            windows.lengths, config.buckets, config.batch_size, config.micro_batch_size,
            config.seed, processes.number, processes.count,
        )  # fmt: skip
        self.weights = Weights(model, config)
        self.weights.prime()
        rooms = [piece[3] for piece in self.draws.pieces]
        self.step = Step(
            model, self.weights, windows.to(processes.device), rooms, config, processes
        )

    def take_over(self, state: TrainState) -> None:
        """Go on from where a run was stopped."""
        self.weights.load_state_dict(state.model)
        self.rows = [tuple(row) for row in state.history]
        self.step_number = state.optimiser["step"]

    def train(self) -> SequenceReport:
        """Run the steps that are left."""
        if self.kind == "popularity":
            self._validate()
            return self._report()
        with progress(f"training {self.kind}", self.config.steps) as advance:
            advance(self.step_number)
            while self.step_number < self.config.steps and not self._is_stale():
                self._run_segment(advance)
                self._validate()
                self._save()
        return self._report()

    def _is_stale(self) -> bool:
        scores = self._scores()
        if not scores:
            return False
        best = max(range(len(scores)), key=lambda i: scores[i][1])
        return len(scores) - 1 - best >= self.config.patience

    def _scores(self) -> list[tuple[int, float]]:
        """Return step and score of every validation so far."""
        wanted = ("valid", self.config.select)
        return [(row[0], row[4]) for row in self.rows if row[2:4] == wanted]

    def _run_segment(self, advance: Callable[[int], None]) -> None:
        """Run the steps up to the next validation.

        Their random numbers follow from the run's seed and the step: they are no state.
        """
        config, device = self.config, self.processes.device
        first = self.step_number
        last = min(config.steps, (first // config.valid_every + 1) * config.valid_every)
        seed = np.random.SeedSequence([config.seed, first, self.processes.number])
        torch.manual_seed(int(seed.generate_state(1, np.uint64)[0]) >> 1)
        shares = torch.tensor(
            [[config.rate_share(s), config.average_share(s)] for s in range(first, last)]
        ).to(device)
        self.model.train()
        stats = torch.empty(last - first, 2, device=device)
        epoch, drawn, checked, started = -1, [], first, time.perf_counter()
        for step in range(first, last):
            if step // self.draws.steps_per_epoch != epoch:
                epoch = step // self.draws.steps_per_epoch
                drawn = [rows.to(device) for rows in self.draws.epoch(epoch)]
            place = step % self.draws.steps_per_epoch
            rows = [drawn[b][place, i:j] for b, i, j, _ in self.draws.pieces]
            stats[step - first] = self.step(rows, shares[step - first])
            if (step + 1) % config.log_every == 0 or step + 1 == last:
                chunk = stats[checked - first : step + 1 - first].cpu()
                seconds = time.perf_counter() - started
                self._log(checked, chunk, shares[step - first].tolist()[0], seconds)
                advance(len(chunk))
                checked, started = step + 1, time.perf_counter()
        self.step_number = last

    def _log(self, first: int, stats: Tensor, rate_share: float, seconds: float) -> None:
        """Take the losses of some steps into the metrics, or stop at one that is not finite."""
        broken = (~stats.isfinite()).any(1).nonzero()
        if len(broken):
            step = int(broken[0])
            loss, norm = stats[step].tolist()
            raise TrainError(
                f"the training loss became {loss} (gradient norm {norm}) in step "
                f"{first + step + 1}; try a smaller learning_rate, or float32"
            )
        metrics = {
            "loss": float(stats[:, 0].double().mean()),
            "gradient_norm": float(stats[:, 1].double().mean()),
            "learning_rate": rate_share * self.config.learning_rate,
            "steps_per_s": len(stats) / seconds,
        }
        self._add_rows(first + len(stats), "train", metrics)

    def _add_rows(self, step: int, split: str, metrics: dict[str, float]) -> None:
        epoch = 0 if self.kind == "popularity" else (step - 1) // self.draws.steps_per_epoch + 1
        self.rows += [(step, epoch, split, name, value) for name, value in metrics.items()]

    def _validate(self) -> None:
        """Measure the model; keep it if no earlier one was as good."""
        started = time.perf_counter()
        with self._averaged():
            metrics = self.validation.measure(self.model)
            before = [score for _, score in self._scores()]
            seconds = {"seconds": time.perf_counter() - started}
            self._add_rows(self.step_number, "valid", metrics | seconds)
            if metrics[self.config.select] > max(before, default=-math.inf):
                self._keep(metrics)
        if self.processes.number == 0:
            write_metrics(self.out, self.rows)

    def _averaged(self) -> contextlib.AbstractContextManager:
        if self.kind == "popularity":
            return contextlib.nullcontext()
        if not self.weights.average.isfinite().all():
            raise TrainError(
                f"a weight is no longer finite after step {self.step_number}; try a smaller "
                "learning_rate"
            )
        return self.weights.averaged()

    def _keep(self, metrics: dict[str, float]) -> None:
        if self.processes.number:
            return
        kept = Kept(
            kind=self.kind,
            model=self.model,
            item_ids=self.item_ids,
            history=self.config.history,
            beam_width=self.config.beam_width,
            exclude_history=self.config.exclude_history,
        )
        chosen = {"step": self.step_number, "split": "valid", "by": self.config.select, **metrics}
        keep_model(kept, self.sids, self.out / BEST, chosen)

    def _save(self) -> None:
        """Write what a stopped run goes on from; last, as a resumed run repeats what it lacks."""
        if self.processes.number == 0:
            TrainState(
                identity=self.identity,
                history=self.rows,
                model=self.weights.state_dict(),
                optimiser={"step": self.step_number},
            ).save(self.out / CHECKPOINTS)
        self.processes.wait()

    def _report(self) -> SequenceReport:
        best_step = max(self._scores(), key=lambda score: (score[1], -score[0]))[0]
        best = {row[3]: row[4] for row in self.rows if row[0] == best_step and row[2] == "valid"}
        best.pop("seconds")
        if self.processes.number == 0:
            draw_metrics(self.out, self.rows, self.config.select)
        return SequenceReport(steps=self.step_number, best_step=best_step, best=best)
