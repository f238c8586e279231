"""The seeds of the demo: each an index, a model and what every mode does with them."""

from __future__ import annotations

import dataclasses
import multiprocessing
import os
import shutil
import sys
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

import torch

from grace.demo.eligibility import demo_schema
from grace.demo.measure import measure_modes
from grace.demo.settings import DemoSettings
from grace.demo.users import DemoRequests
from grace.index import Index, build_index
from grace.model import FeatureSpec, load_model
from grace.progress import progress
from grace.train import TrainReport, train


@dataclass(frozen=True, kw_only=True)
class SeedJob:
    """What one seed needs.

    Attributes:
        folder: for `index` and `model`.
        rows: the catalogue as this seed deals it.
    """

    seed: int
    folder: Path
    rows: list[dict]
    requests: DemoRequests
    settings: DemoSettings


@dataclass(frozen=True, kw_only=True)
class SeedRun:
    """What one seed gave.

    Attributes:
        epochs: that training took, and `train_seconds` how long.
        valid_recall: of the checkpoint kept, at `recall_at`, nothing filtered.
        eligible_targets: share of requests that may see their held-out film.
        modes: matching mode → metric → value.
    """

    seed: int
    epochs: int
    train_seconds: float
    valid_recall: float
    recall_at: int
    eligible_targets: float
    modes: dict[str, dict[str, float | None]]


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What retrieval gave: see `SeedRun`."""

    eligible_targets: float
    modes: dict[str, dict[str, float | None]]


def run_seeds(jobs: list[SeedJob], processes: int | None) -> list[SeedRun]:
    """Run seeds side by side; folders inside the first one's are removed afterwards.

    A model this small gains little from a second thread and a lot from a core of its own, and in
    one thread its numbers do not depend on how many cores there are. Training and retrieval are
    tasks of their own, so that an odd number of seeds still keeps two cores busy.

    Args:
        jobs: in the order of the result.
        processes: how many tasks at the same time; None is one a core.
    """
    pool = ProcessPoolExecutor(
        min(processes or num_cores(), len(jobs)),
        multiprocessing.get_context("spawn"),
        initializer=start_worker,
    )
    try:
        with progress("training and retrieval", 2 * len(jobs)) as advance:
            trainings = {pool.submit(train_seed, job): job for job in jobs}
            retrievals: dict[Future[Measured], SeedJob] = {}
            fitted: dict[int, TrainReport] = {}
            for training in as_completed(trainings):
                job = trainings[training]
                fitted[job.seed] = training.result()
                retrievals[pool.submit(measure_seed, job)] = job
                advance(1)
            measured: dict[int, Measured] = {}
            for retrieval in as_completed(retrievals):
                job = retrievals[retrieval]
                measured[job.seed] = retrieval.result()
                if job.folder != jobs[0].folder:
                    shutil.rmtree(job.folder)
                advance(1)
    finally:
        pool.shutdown(cancel_futures=True)
    return [_summary(job.seed, fitted[job.seed], measured[job.seed]) for job in jobs]


def start_worker() -> None:
    """Keep a worker to one thread and off the terminal, where bars would overlap."""
    torch.set_num_threads(1)
    sys.stderr = open(os.devnull, "w")  # noqa: SIM115 (as long as the process)


def num_cores() -> int:
    """Return how many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def train_seed(job: SeedJob) -> TrainReport:
    """Index a seed's catalogue and train its model."""
    index = build_index(job.rows, demo_schema(), job.folder / "index")
    features = FeatureSpec.load(str(files("grace.demo").joinpath("features.yaml")))
    run = job.settings.run
    config = dataclasses.replace(run, train=dataclasses.replace(run.train, seed=job.seed))
    requests = job.requests
    return train(
        index, features, requests.train, requests.valid, job.folder / "model", config=config
    )


def measure_seed(job: SeedJob) -> Measured:
    """Retrieve for every held-out request under every mode.

    Raises:
        AssertionError: if `exact` kept a beam, or generated a SID, that no eligible ad is below.
    """
    index, model = Index.open(job.folder / "index"), load_model(job.folder / "model")
    settings = job.settings
    modes, evaluation = measure_modes(index, model, job.requests.test, settings.plan, settings.ks)
    for metric, value in modes["exact"].items():
        if metric == "eligible SIDs" and value != 1:
            raise AssertionError(f"seed {job.seed}: exact: share of eligible SIDs is {value}")
        if metric.startswith("wasted beams") and value != 0:
            raise AssertionError(f"seed {job.seed}: exact: {metric}: {value}")
    return Measured(
        eligible_targets=evaluation.num_eligible / evaluation.num_evaluated, modes=modes
    )


def _summary(seed: int, fitted: TrainReport, measured: Measured) -> SeedRun:
    return SeedRun(
        seed=seed,
        epochs=len(fitted.history),
        train_seconds=sum(epoch["train_s"] + epoch["valid_s"] for epoch in fitted.history),
        valid_recall=fitted.best["valid_recall"],
        recall_at=fitted.recall_at,
        eligible_targets=measured.eligible_targets,
        modes=measured.modes,
    )
