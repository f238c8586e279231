"""`grace demo` from MovieLens to its report, step by step."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

import torch

from grace.catalog import write_rows
from grace.datasets.movielens import MovieLens
from grace.demo.brute_force import check_against_brute_force
from grace.demo.data import deal_rules
from grace.demo.folder import REPORT_FILE, replaced_folder
from grace.demo.measure import (
    SeedMean,
    Stopwatch,
    answer_singly,
    latencies_ms,
    mean_funnel,
    seed_mean,
)
from grace.demo.people import Person, describe_people
from grace.demo.places import zip_places
from grace.demo.seeds import SeedJob, SeedRun, run_seeds
from grace.demo.settings import DemoSettings
from grace.demo.users import DemoRequests, demo_requests
from grace.files import atomic_write
from grace.index import MATCHERS, Index
from grace.model import load_model
from grace.sid import fit_catalog


@dataclass(frozen=True, kw_only=True)
class DemoReport:
    """Everything that the demo prints.

    Attributes:
        people, films, ratings, sids, ads_per_sid_max: sizes.
        level_sizes: prefixes of length 0..L.
        plan: `{"widths", "num_sids"}`, the same for all modes.
        seeds: what each seed gave.
        modes: matching mode → metric → mean over seeds.
        exact_minus: other mode → metric → mean over seeds of the difference within a seed.
        single_requests: how many requests `funnel` and `latency_ms` are of, under the first seed.
        funnel: mode → mean count of each stage.
        latency_ms: mode → stage → `{"p50", "p99"}` of requests answered alone.
        described: people in words.
        checks: what was checked, in words.
        seconds: step → wall time.
    """

    people: int
    films: int
    ratings: int
    sids: int
    ads_per_sid_max: int
    level_sizes: list[int]
    plan: dict
    seeds: list[SeedRun]
    modes: dict[str, dict[str, SeedMean]]
    exact_minus: dict[str, dict[str, SeedMean]]
    single_requests: int
    funnel: dict[str, dict[str, float]]
    latency_ms: dict[str, dict[str, dict[str, float]]]
    described: list[Person]
    checks: list[str]
    seconds: dict[str, float]

    def to_dict(self) -> dict:
        """Plain values for JSON."""
        return dataclasses.asdict(self)


def run_demo(
    movielens: MovieLens,
    out: str | os.PathLike,
    settings: DemoSettings | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> DemoReport:
    """Fit SIDs, train, index, retrieve under every mode, check, and leave a usable folder.

    Args:
        movielens: the people and films, see `load_movielens`.
        out: folder for catalogue, index, model, requests and report; replaced as a whole.
        settings: by default those of the documented run.
        say: told what comes next.

    Raises:
        ConfigError: if `out` holds something else.
        AssertionError: if a check fails.
    """
    settings = settings or DemoSettings()
    watch = Stopwatch()
    with replaced_folder(out) as folder, one_thread():
        say("Semantic IDs of the films")
        requests = demo_requests(movielens, zip_places())
        sids, most_ads = write_inputs(folder, movielens, requests, settings)
        watch.lap("SIDs")
        say("for each seed: rules, index, training, then retrieval under every mode")
        jobs = [
            SeedJob(
                seed=seed,
                folder=folder if number == 0 else folder / f"seed-{seed}",
                rows=catalog_of_seed(movielens, seed, sids),
                requests=requests,
                settings=settings,
            )
            for number, seed in enumerate(settings.seeds)
        ]
        runs = run_seeds(jobs, settings.processes)
        watch.lap("training and retrieval")
        rows, index = jobs[0].rows, Index.open(folder / "index")
        model = load_model(folder / "model")
        asked = [without_target(request) for request in requests.test]
        say("requests one at a time")
        single = asked[: settings.single_requests]
        answers = answer_singly(index, model, single, settings.plan)
        watch.lap("requests one at a time")
        say("brute force")
        checked = asked[:: max(1, len(asked) // settings.checked_requests)]
        checked = checked[: settings.checked_requests]
        compared = check_against_brute_force(index, model, rows, checked)
        watch.lap("brute force")
        report = DemoReport(
            people=len(movielens.users),
            films=len(movielens.movies),
            ratings=sum(map(len, movielens.ratings.values())),
            sids=index.num_sids,
            ads_per_sid_max=most_ads,
            level_sizes=list(index.level_sizes),
            plan=dataclasses.asdict(settings.plan),
            seeds=runs,
            modes=over_seeds([run.modes for run in runs]),
            exact_minus=over_seeds([differences(run.modes) for run in runs]),
            single_requests=len(single),
            funnel={mode: mean_funnel(results) for mode, results in answers.items()},
            latency_ms={mode: latencies_ms(results) for mode, results in answers.items()},
            described=describe_people(index, rows, single, answers["valid"], answers["exact"]),
            checks=[
                f"exact, {len(runs)} seeds: every generated SID was eligible, no beam wasted",
                f"a plan as wide as the trie, {len(checked)} requests: {', '.join(MATCHERS[:-1])} "
                f"and exact return the same {compared:,} ads, those of brute force over all "
                f"{index.num_sids:,} SIDs and {index.num_ads:,} films, scores and order included",
            ],
            seconds=watch.seconds,
        )
        with atomic_write(folder / REPORT_FILE) as file:
            file.write(json.dumps(report.to_dict(), indent=1, ensure_ascii=False).encode() + b"\n")
    return report


def write_inputs(
    folder: Path, movielens: MovieLens, requests: DemoRequests, settings: DemoSettings
) -> tuple[list[list[int]], int]:
    """Write every input of the other commands; return the films' SIDs and the most films on one.

    SIDs come from titles, genres and the training part of behaviour. Rules have no say in them, so
    they hold for every seed.
    """
    fit = fit_catalog(
        deal_rules(movielens, settings.seeds[0]),
        folder / "catalog.jsonl",
        text=("title", "genres"),
        behaviour=requests.behaviour,
        levels=settings.levels,
        codes=settings.codes,
    )
    for name in ("schema.yaml", "features.yaml"):
        with atomic_write(folder / name) as file:
            file.write(files("grace.demo").joinpath(name).read_bytes())
    write_rows(folder / "train.jsonl", requests.train)
    write_rows(folder / "valid.jsonl", requests.valid)
    write_rows(folder / "held-out.jsonl", requests.test)
    write_rows(folder / "requests.jsonl", map(without_target, requests.test))
    return fit.sids.tolist(), int(fit.report.ads_per_sid["max"])


def without_target(request: dict) -> dict:
    """Return what a retriever may know of a held-out request."""
    return {name: value for name, value in request.items() if name != "target"}


def catalog_of_seed(movielens: MovieLens, seed: int, sids: list[list[int]]) -> list[dict]:
    """Return the catalogue with the rules as a seed deals them."""
    rows = deal_rules(movielens, seed)
    return [row | {"sid": sid} for row, sid in zip(rows, sids, strict=True)]


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Keep torch to one thread."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


Modes = dict[str, dict[str, float | None]]


def differences(modes: Modes) -> Modes:
    """Return every other mode → metric → the value of `exact` less that mode's."""
    return {
        mode: {
            metric: None if value is None or metrics[metric] is None else value - metrics[metric]
            for metric, value in modes["exact"].items()
        }
        for mode, metrics in modes.items()
        if mode != "exact"
    }


def over_seeds(seeds: list[Modes]) -> dict[str, dict[str, SeedMean]]:
    """Return mode → metric → mean over seeds."""
    return {
        mode: {metric: seed_mean([modes[mode][metric] for modes in seeds]) for metric in metrics}
        for mode, metrics in seeds[0].items()
    }
