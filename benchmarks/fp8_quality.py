"""What do bfloat16 and FP8 change in the answers of a trained model?

Trains models on MovieLens-100K as `grace demo` does, one a seed, keeps them in `--out` and uses
them again; or takes a run of `grace train --data … --model grace` (`--run`, `--data`); or a model
of your own (`--index`, `--checkpoint`, `--requests`). Every request is decoded in float32, bfloat16
and float8, all else alike. The demo's catalogue is taken without its rules, so that every request
may see its held-out film; a run's has none but that of a history, where the run leaves that out.

    python -m benchmarks.fp8_quality --run runs/quality/runs/beauty-grace-0 \
        --data runs/quality/data/beauty --split test

The demo's models are so small that no product of theirs gains by FP8 (docs/fp8.md), and float8
would be bfloat16: `--every-product` quantises them all the same, to see what it does to answers.

- `recall@k` of a precision: held-out ads among the first k, by requests that may see theirs.
- `SID overlap@k`, `ad overlap@k` of `one against other`: entries that the first k of both have, by
  entries, over all requests. How they are ordered within k has no say.
- `recall@k ratio` of `one against other`: its recall by the other's; `gained` and `lost` count the
  requests whose held-out ad only one of them has.
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import torch

from benchmarks import quality_requests, record
from grace.datasets import load
from grace.decode import full_plan
from grace.errors import DataError, GraceError
from grace.evaluate.metrics import recall
from grace.evaluate.observe import find_ranks, find_targets
from grace.evaluate.run import retrievable, target_of
from grace.index import Index
from grace.model import projection
from grace.retrieve import Result, Retriever
from grace.train import RunConfig

PRECISIONS = ("float32", "bfloat16", "float8")
PAIRS = (("bfloat16", "float32"), ("float8", "float32"), ("float8", "bfloat16"))
KS = (10, 100)
NOW = datetime.now(UTC).isoformat(timespec="seconds")  # for requests that do not say when
LEAST_OVERLAP, LEAST_RECALL_RATIO = 0.99, 0.995  # of float8 against bfloat16, to be a default


@dataclass(frozen=True)
class Asked:
    """A model and what it is asked.

    Attributes:
        index: its catalogue.
        model: its folder.
        requests: each with a `target`.
    """

    index: Index
    model: Path
    requests: list[dict]


@dataclass(frozen=True)
class Answers:
    """What one precision answers, an entry per request.

    Attributes:
        sids: generated SIDs, best first.
        ads: ids of returned ads, best first.
        ranks: int64 `[n]`, place of the held-out ad among the returned ones, 0 where it is missing.
    """

    sids: list[list]
    ads: list[list]
    ranks: np.ndarray


def main(arguments: Sequence[str] | None = None) -> None:
    """Train what is missing, decode in every precision, show and write the rows."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", type=Path, help="MovieLens-100K, or the data set of --run")
    parser.add_argument("--run", type=Path, help="run folder of `grace train --data --model grace`")
    parser.add_argument("--split", choices=("valid", "test"), default="valid", help="of --run")
    parser.add_argument("--users", type=int, default=2000, help="of --run, drawn once; 0 for all")
    parser.add_argument("--out", type=Path, default=Path("runs/fp8-quality"))
    parser.add_argument("--seeds", type=int, default=5, help="models to train")
    parser.add_argument("--config", type=Path, help="TOML file of `grace train`: sizes, training")
    parser.add_argument("--index", type=Path, help="an index of your own")
    parser.add_argument("--checkpoint", type=Path, help="the model for it")
    parser.add_argument("--requests", type=Path, help="its requests, .jsonl, each with a target")
    parser.add_argument("--beams", type=int, default=256, help="at every step, and SIDs kept")
    parser.add_argument(
        "--every-product", action="store_true", help="FP8 also where it is not faster"
    )
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args(arguments)
    given = (options.index, options.checkpoint, options.requests)
    if any(given) and (not all(given) or options.run):
        parser.error("--index, --checkpoint and --requests go together, without --run")
    if options.run and not options.data:
        parser.error("--run needs the --data that it was trained on")
    if options.every_product:
        projection.LEAST_FP8_FLOPS = 0
    if options.run:
        try:
            asked = [of_run(options)]
        except GraceError as error:
            parser.error(str(error))
        case = f"{options.data.resolve().name}, {options.split}"
    else:
        paths = [given] if all(given) else train_models(options)
        asked = (of_paths(*each) for each in paths)
        case = options.checkpoint.name if all(given) else "movielens"
    answers, eligible = decode_all(asked, options)
    rows = list(compare(case, answers, eligible))
    record.show("fp8_quality", rows)
    print(f"float8 may be a default here: {'yes' if acceptable(rows) else 'no'}")
    machine = record.machine_name() if options.device.startswith("cuda") else "cpu"
    if options.run:
        print(record.write_cases("fp8_run", rows, machine, record.RESULTS))
    else:
        print(record.write("fp8_quality", rows, machine))


def of_run(options: argparse.Namespace) -> Asked:
    """What a run of `grace train --data` is asked: its users' histories, for what came next.

    Raises:
        ModelError: if it holds no model.
        DataError: if its model is of another kind than `grace`, or was trained on other items.
    """
    data = load(options.data)
    generator = quality_requests.open_generator(options.run, data)
    if generator.kind != "grace":
        raise DataError(f"{options.run}: FP8 is for models of kind grace, got {generator.kind}")
    users = quality_requests.held_out(generator, data, options.split, "fp8_quality")
    chosen = quality_requests.draw_users(len(users), options.users)
    requests = quality_requests.make_requests(generator, users, chosen)
    return Asked(quality_requests.build_index(generator, data), options.run / "best", requests)


def of_paths(index: Path, model: Path, requests: Path) -> Asked:
    """What files say; `requests` is JSON Lines."""
    with requests.open() as file:
        return Asked(Index.open(index), model, [json.loads(line) for line in file])


def train_models(options: argparse.Namespace) -> list[tuple[Path, Path, Path]]:
    """Return index, checkpoint and requests of every seed, trained unless `--out` has them."""
    folders = [options.out / f"seed-{seed}" for seed in range(options.seeds)]
    missing = [seed for seed, folder in enumerate(folders) if not folder.exists()]
    if missing:
        train_missing(missing, options)
    requests = options.out / "held-out.jsonl"
    return [(folder / "index", folder / "model", requests) for folder in folders]


def train_missing(seeds: Sequence[int], options: argparse.Namespace) -> None:
    """Index and train as the demo does, a folder a seed."""
    # Where the models are there, nothing that the demo needs has to be.
    from grace.datasets.movielens import load_movielens
    from grace.demo.pipeline import catalog_of_seed, one_thread, write_inputs
    from grace.demo.places import zip_places
    from grace.demo.seeds import SeedJob, train_seed
    from grace.demo.settings import DemoSettings
    from grace.demo.users import demo_requests

    options.out.mkdir(parents=True, exist_ok=True)
    settings = DemoSettings(run=RunConfig.load(options.config) if options.config else RunConfig())
    movielens = load_movielens(options.data)
    requests = demo_requests(movielens, zip_places())
    with one_thread():
        sids, _ = write_inputs(options.out, movielens, requests, settings)  # held-out.jsonl too
        for seed in seeds:
            print(f"training seed {seed}", flush=True)
            rows = [
                {"ad_id": row["ad_id"], "sid": row["sid"]}
                for row in catalog_of_seed(movielens, seed, sids)
            ]
            made = options.out / f".seed-{seed}"  # a training that was stopped is none
            shutil.rmtree(made, ignore_errors=True)
            train_seed(
                SeedJob(seed=seed, folder=made, rows=rows, requests=requests, settings=settings)
            )
            made.rename(options.out / f"seed-{seed}")


def decode_all(
    asked: Iterable[Asked], options: argparse.Namespace
) -> tuple[dict[str, Answers], np.ndarray]:
    """Return every precision's answers over all models, and who may see the held-out ad."""
    found: dict[str, list[Answers]] = {precision: [] for precision in PRECISIONS}
    eligible = []
    for one in asked:
        index = one.index
        wanted = [target_of(request, number) for number, request in enumerate(one.requests, 1)]
        requests = [retrievable(request, NOW) for request in one.requests]
        targets = find_targets(index, requests, wanted)
        eligible.append(targets.eligible)
        plan = full_plan(index.num_levels, options.beams)
        for precision in PRECISIONS:
            retriever = Retriever(
                index, str(one.model), plan, "exact", options.device, precision=precision
            )
            results = retriever.retrieve(requests)
            found[precision].append(answers_of(index, results, targets.positions))
    answers = {precision: joined(parts) for precision, parts in found.items()}
    return answers, np.concatenate(eligible)


def answers_of(index: Index, results: Sequence[Result], positions: np.ndarray) -> Answers:
    """What results say; `positions` are those of the held-out ads."""
    failed = [result.error for result in results if result.error is not None]
    if failed:
        raise RuntimeError(f"{len(failed)} requests failed, first: {failed[0]}")
    return Answers(
        sids=[[sid for sid, _ in result.sids] for result in results],
        ads=[[ad.ad_id for ad in result.ads] for result in results],
        ranks=np.array(
            [
                find_ranks(index, result, position)[0]
                for result, position in zip(results, positions.tolist(), strict=True)
            ]
        ),
    )


def joined(parts: Sequence[Answers]) -> Answers:
    """The answers of several runs as those of one."""
    return Answers(
        sids=[sids for part in parts for sids in part.sids],
        ads=[ads for part in parts for ads in part.ads],
        ranks=np.concatenate([part.ranks for part in parts]),
    )


def compare(case: str, answers: dict[str, Answers], eligible: np.ndarray) -> Iterator[dict]:
    """Rows of one case.

    Args:
        case: names the model.
        answers: by precision.
        eligible: bool `[n]`, requests that may see their held-out ad; only their recall counts.
    """
    n = int(eligible.sum())
    hits = {
        (precision, k): recall(each.ranks[eligible], k)
        for precision, each in answers.items()
        for k in KS
    }
    for (precision, k), hit in hits.items():
        counts = {"hits": int(hit.sum()), "requests": n}
        yield record.row(case, precision, f"recall@{k}", "rate", hit.mean(), n=n, counts=counts)
    for one, other in PAIRS:
        variant = f"{one} against {other}"
        for k in KS:
            for what in ("SID", "ad"):
                lists = [getattr(answers[p], f"{what.lower()}s") for p in (one, other)]
                shared, entries = overlap(*lists, k)
                counts = {"shared": shared, "entries": entries}
                yield record.row(
                    case, variant, f"{what} overlap@{k}", "rate", shared / entries,
                    n=len(eligible), counts=counts,
                )  # fmt: skip
            mine, theirs = hits[one, k], hits[other, k]
            if theirs.any():
                counts = {
                    "gained": int((mine & ~theirs).sum()),
                    "lost": int((theirs & ~mine).sum()),
                }
                ratio = mine.sum() / theirs.sum()
                yield record.row(
                    case, variant, f"recall@{k} ratio", "ratio", ratio, n=n, counts=counts
                )


def overlap(ones: Sequence[list], others: Sequence[list], k: int) -> tuple[int, int]:
    """Entries that the first k of both have, and the most they could have, over all requests."""
    shared = sum(len(set(a[:k]) & set(b[:k])) for a, b in zip(ones, others, strict=True))
    return shared, sum(max(len(a[:k]), len(b[:k])) for a, b in zip(ones, others, strict=True))


def acceptable(rows: Sequence[dict]) -> bool:
    """Whether float8 answers like bfloat16, so closely that it may be a default."""
    values = {
        row["metric"]: row["value"] for row in rows if row["variant"] == "float8 against bfloat16"
    }
    overlaps = [value for metric, value in values.items() if "overlap" in metric]
    return min(overlaps) >= LEAST_OVERLAP and values.get("recall@10 ratio", 0) >= LEAST_RECALL_RATIO


if __name__ == "__main__":
    main()
