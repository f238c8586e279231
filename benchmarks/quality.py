"""How well do our models rank on the public data sets? Data, SIDs, training, evaluation, in one go.

Everything is a command of `grace` that could be typed (docs/quality.md); this script runs them in
their order, several at once, and makes rows of what they measure. It goes on where it was stopped.

    python -m benchmarks.quality --raw ../shared/data --device cuda --jobs 6 --minutes 20 --write
    python -m benchmarks.quality --raw ../shared/data --data beauty --variants tiger \
        --trial wider --set train.beam_width=200

A trial changes settings, is measured on the validation split alone and ends with a line for
docs/quality-log.md.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import signal
import sys
import time
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks import record
from benchmarks.quality_jobs import Job, run_jobs
from benchmarks.quality_rows import log_line, rows_of

RECIPES = record.ROOT / "recipes"
DATA = ("beauty", "sports", "toys", "movielens")


@dataclass(frozen=True)
class Variant:
    """What is trained and measured under one name.

    Attributes:
        model: kind of model.
        recipe: name of its recipe; `<recipe>-<data>.toml` goes before `<recipe>.toml`.
        sids: name of the tokenizer in `recipes/sids.toml`; None for models without.
        unseen: whether items of the user's history are taken out of its lists.
        of: another variant, whose runs are measured; None for its own.
    """

    model: str
    recipe: str | None = None
    sids: str | None = None
    unseen: bool = False
    of: str | None = None


VARIANTS = {
    "popularity": Variant("popularity"),
    "sasrec": Variant("sasrec", "sasrec"),
    "sasrec-unseen": Variant("sasrec", "sasrec", unseen=True, of="sasrec"),
    "tiger": Variant("tiger", "tiger", "balanced-reassign"),
    "tiger-unseen": Variant("tiger", "tiger", "balanced-reassign", unseen=True, of="tiger"),
    "random-sid": Variant("tiger", "tiger", "random"),
    "grace": Variant("grace", "grace", "balanced-reassign"),
    "generation": Variant("causal", "generation", "balanced-reassign"),
    "best": Variant("causal", "causal", "balanced-reassign"),
}


def main() -> None:
    """Plan the jobs, run them, write rows."""
    # Whatever ends this program ends what it started.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    options = parse_options(sys.argv[1:])
    deadline = time.monotonic() + 60 * options.minutes
    jobs = plan(options)
    if options.dry_run:
        for job in jobs:
            print("grace " + " ".join(map(shlex.quote, job.arguments)))
        return
    outcome = run_jobs(jobs, options.out, options.jobs, deadline)
    reports = {}
    for data in options.data:
        for variant in reported(options):
            for split in splits(options):
                path = report_path(options, data, variant, split)
                job = evaluation_name(options, data, variant, split)
                if job in outcome.done and path.exists():
                    reports[data, variant, split] = json.loads(path.read_text())
    rows = rows_of(reports)
    if rows:
        record.show("quality", rows)
    if options.trial:
        for (data, variant, _), report in reports.items():
            changes = [*([f"sids {options.sids}"] if options.sids else []), *options.set]
            print(log_line(data, variant, options.trial, changes, report))
    elif options.write and rows:
        print(write(options, rows, reports))
    if outcome.stopped:
        print(f"stopped before their last step: {', '.join(outcome.stopped)}")
    sys.exit(1 if outcome.failed or outcome.skipped else 0)


def parse_options(arguments: Sequence[str]) -> argparse.Namespace:
    """Read the command line; wrong names end the program."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--raw", type=Path, default=record.ROOT.parent / "shared" / "data")
    parser.add_argument("--out", type=Path, default=Path("runs/quality"), help="working folder")
    parser.add_argument("--data", nargs="+", choices=DATA, default=list(DATA))
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=list(VARIANTS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--until", choices=("sids", "train", "valid", "test"), default="test")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--jobs", type=int, default=1, help="processes at once")
    parser.add_argument("--minutes", type=float, default=1e6, help="then trainings are stopped")
    parser.add_argument("--trial", help="a name; measured on validation alone")
    parser.add_argument("--set", nargs="+", default=[], metavar="TABLE.KEY=VALUE", help="a setting")
    parser.add_argument("--sids", help="another tokenizer of recipes/sids.toml, for a --trial")
    parser.add_argument("--write", action="store_true", help="write the result files")
    parser.add_argument("--dry-run", action="store_true", help="print the commands only")
    options = parser.parse_args(arguments)
    if (options.set or options.sids) and not options.trial:
        parser.error("--set and --sids change what is measured: give the --trial a name")
    if options.trial and options.until == "test":
        options.until = "valid"
    return options


def splits(options: argparse.Namespace) -> tuple[str, ...]:
    """The splits that are opened."""
    return {"valid": ("valid",), "test": ("valid", "test")}.get(options.until, ())


def reported(options: argparse.Namespace) -> list[str]:
    """The variants asked for."""
    return list(dict.fromkeys(options.variants))


def trained(options: argparse.Namespace) -> list[str]:
    """The variants whose runs are measured."""
    return list(dict.fromkeys(VARIANTS[name].of or name for name in options.variants))


def plan(options: argparse.Namespace) -> list[Job]:
    """All jobs, each after what it needs; long trainings first."""
    jobs = []
    for data in options.data:
        folder = options.out / "data" / data
        arguments = ("data", "prepare", data, "--raw", str(options.raw), "--out", str(folder))
        jobs.append(Job(f"data-{data}", arguments))
    tokenizers = {sids: None for name in trained(options) if (sids := tokenizer(options, name))}
    for data in options.data:
        jobs += [fit_job(options, data, sids) for sids in tokenizers]
    if options.until == "sids":
        return jobs
    by_length = sorted(trained(options), key=lambda name: VARIANTS[name].model != "tiger")
    for data in options.data:
        for name in by_length:
            jobs += [train_job(options, data, name, seed) for seed in options.seeds]
    for data in options.data:
        for name in reported(options):
            jobs += evaluation_jobs(options, data, name)
    return jobs


def settings(options: argparse.Namespace) -> dict[str, dict[str, object]]:
    """What `--set` says, table → key → value."""
    tables: dict[str, dict[str, object]] = {}
    for word in options.set:
        name, _, value = word.partition("=")
        table, _, key = name.partition(".")
        if table not in ("model", "train", "sids") or not key or not value:
            sys.exit(f"--set: expected model.KEY=VALUE, train.… or sids.…, got {word!r}")
        try:
            parsed = tomllib.loads(f"value = {value}")["value"]
        except tomllib.TOMLDecodeError:
            parsed = value  # a bare word
        tables.setdefault(table, {})[key] = parsed
    return tables


def tokenizer(options: argparse.Namespace, variant: str) -> str | None:
    """Name of the tokenizer of a variant; a trial may take another or change it."""
    sids = VARIANTS[variant].sids
    if sids is None:
        return None
    return (options.sids or sids) + (f"+{options.trial}" if "sids" in settings(options) else "")


def fit_job(options: argparse.Namespace, data: str, sids: str) -> Job:
    """`grace sid fit`."""
    prepared = options.out / "data" / data
    base, changed, _ = sids.partition("+")
    tables = tomllib.loads((RECIPES / "sids.toml").read_text())
    recipe = tables[base] | (settings(options).get("sids", {}) if changed else {})
    out = sids_path(options, data, sids)
    out.parent.mkdir(parents=True, exist_ok=True)
    arguments = ["sid", "fit", "--catalog", str(prepared / "items.parquet"), "--out", str(out)]
    arguments += ["--report", str(out.with_suffix(".json"))]
    for key, value in recipe.items():
        if key == "behaviour":
            arguments += ["--behaviour", str(prepared / "train.parquet")] if value else []
        else:
            arguments += [f"--{key}", str(value)]
    return Job(f"sids-{data}-{sids}", tuple(arguments), (f"data-{data}",))


def sids_path(options: argparse.Namespace, data: str, sids: str) -> Path:
    """Catalogue with the SIDs of a tokenizer."""
    return options.out / "sids" / f"{data}-{sids}.parquet"


def run_name(options: argparse.Namespace, data: str, variant: str, seed: int) -> str:
    """Name of a run's folder; a trial's runs are its own."""
    trial = f"+{options.trial}" if options.trial else ""
    return f"{data}-{variant}{trial}-{seed}"


def train_job(options: argparse.Namespace, data: str, variant: str, seed: int) -> Job:
    """`grace train --data`."""
    made, name = VARIANTS[variant], run_name(options, data, variant, seed)
    out = options.out / "runs" / name
    arguments = ["train", "--data", str(options.out / "data" / data), "--model", made.model]
    needs = [f"data-{data}"]
    sids = tokenizer(options, variant)
    if sids:
        arguments += ["--sids", str(sids_path(options, data, sids))]
        needs.append(f"sids-{data}-{sids}")
    if made.recipe:
        arguments += ["--config", str(recipe_path(options, data, variant))]
    arguments += ["--seed", str(seed), "--device", options.device, "--out", str(out), "--resume"]
    return Job(f"train-{name}", tuple(arguments), tuple(needs), stops=True, made=out / "best")


def recipe_path(options: argparse.Namespace, data: str, variant: str) -> Path:
    """The recipe of a variant; for a trial, a changed copy."""
    name = VARIANTS[variant].recipe
    special = RECIPES / f"{name}-{data}.toml"
    path = special if special.exists() else RECIPES / f"{name}.toml"
    changes = {table: keys for table, keys in settings(options).items() if table != "sids"}
    if not changes:
        return Path(os.path.relpath(path))
    tables = tomllib.loads(path.read_text())
    for table, keys in changes.items():
        tables[table] = tables.get(table, {}) | keys
    changed = options.out / "recipes" / f"{data}-{variant}+{options.trial}.toml"
    changed.parent.mkdir(parents=True, exist_ok=True)
    lines = []
    for table, keys in tables.items():
        # JSON's strings, numbers and booleans are TOML's.
        lines += [f"[{table}]", *(f"{key} = {json.dumps(value)}" for key, value in keys.items())]
    changed.write_text("\n".join(lines) + "\n")
    return changed


def evaluation_name(options: argparse.Namespace, data: str, variant: str, split: str) -> str:
    """Name of the job, other seeds other jobs."""
    runs = run_name(options, data, variant, options.seeds[0]).rpartition("-")[0]
    return f"{split}-{runs}-{'-'.join(map(str, options.seeds))}"


def report_path(options: argparse.Namespace, data: str, variant: str, split: str) -> Path:
    """Where an evaluation writes its numbers."""
    return options.out / "reports" / f"{evaluation_name(options, data, variant, split)}.json"


def evaluation_jobs(options: argparse.Namespace, data: str, variant: str) -> list[Job]:
    """`grace evaluate --run`, validation first."""
    made = VARIANTS[variant]
    runs = [run_name(options, data, made.of or variant, seed) for seed in options.seeds]
    arguments = ["evaluate", "--data", str(options.out / "data" / data)]
    for name in runs:
        arguments += ["--run", str(options.out / "runs" / name)]
    arguments += ["--drop-history"] if made.unseen else []
    jobs, needs = [], tuple(f"train-{name}" for name in runs)
    for split in splits(options):
        report = report_path(options, data, variant, split)
        report.parent.mkdir(parents=True, exist_ok=True)
        more = ("--split", split, "--device", options.device, "--report", str(report))
        job = Job(evaluation_name(options, data, variant, split), (*arguments, *more), needs)
        jobs.append(job)
        needs = (*needs, job.name)
    return jobs


def write(options: argparse.Namespace, rows: list[dict], reports: dict) -> Path:
    """Write the rows, those of other cases and variants kept, and each evaluation as it is."""
    machine = record.machine_name() if options.device != "cpu" else "cpu"
    path = record.RESULTS / machine / "quality.json"
    new = {(row["case"], row["variant"]) for row in rows}
    before = json.loads(path.read_text())["rows"] if path.exists() else []
    kept = [row for row in before if (row["case"], row["variant"]) not in new]
    folder = path.with_suffix("")
    folder.mkdir(parents=True, exist_ok=True)
    for (data, variant, split), report in reports.items():
        text = json.dumps(report, indent=1, ensure_ascii=False) + "\n"
        (folder / f"{data}-{variant}-{split}.json").write_text(text)
    order = {name: place for place, name in enumerate((*DATA, *VARIANTS))}
    every = sorted(kept + rows, key=lambda row: (order[row["case"]], order[row["variant"]]))
    return record.write("quality", every, machine, record.RESULTS, added=bool(kept))


if __name__ == "__main__":
    main()
