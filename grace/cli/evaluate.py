"""`grace evaluate`: how well a model retrieves what was held out, in one of two forms."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from grace.catalog import iter_rows
from grace.cli.options import Precision, parse_plan
from grace.errors import ConfigError
from grace.index import MATCHERS, Index

INDEX_FORM = ("index", "model", "requests", "out")
INDEX_OPTIONS = ("matching", "plan", "sids", "k", "bucket", "fixed_ads")
RUN_FORM = ("run", "data", "split")
RUN_OPTIONS = ("fuse", "beam_width", "drop_history", "report")


def evaluate(
    index: Annotated[Path | None, typer.Option(help="Directory of the index.")] = None,
    model: Annotated[Path | None, typer.Option(help="Directory of a trained model.")] = None,
    requests: Annotated[
        Path | None,
        typer.Option(help='Requests, .jsonl, each with "target", the ad held out from it.'),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Directory for evaluation.json and evaluation.png.")
    ] = None,
    matching: Annotated[
        list[str] | None,
        typer.Option(help=f"{' | '.join(MATCHERS)}; may be repeated, by default all."),
    ] = None,
    plan: Annotated[str | None, typer.Option(help="Beams entering each step: 1,256,512.")] = None,
    sids: Annotated[
        int | None, typer.Option(help="SIDs to keep; by default the last width.")
    ] = None,
    k: Annotated[
        list[int] | None,
        typer.Option(min=1, help="Places of recall and NDCG; may be repeated, by default 10, 50."),
    ] = None,
    bucket: Annotated[
        list[int] | None,
        typer.Option(
            min=1,
            help="Bounds between buckets of generated ads; by default they hold a third each.",
        ),
    ] = None,
    fixed_ads: Annotated[
        list[int] | None,
        typer.Option(min=1, help="Numbers of ads at which pass rates are compared."),
    ] = None,
    run: Annotated[
        list[Path] | None,
        typer.Option(help="Run folder of grace train --data; repeated: one model's seeds."),
    ] = None,
    data: Annotated[
        Path | None, typer.Option(help="With --run: prepared data set, from grace data prepare.")
    ] = None,
    split: Annotated[str | None, typer.Option(help="With --run: valid | test.")] = None,
    fuse: Annotated[
        list[Path] | None,
        typer.Option(
            help="With --run: a run whose lists are fused with it, one for each --run in their "
            "order, or several rounds of that; weights are chosen on validation."
        ),
    ] = None,
    beam_width: Annotated[
        int | None,
        typer.Option(min=1, help="With --run: SIDs that a search keeps; by default the run's."),
    ] = None,
    drop_history: Annotated[
        bool, typer.Option("--drop-history", help="With --run: leave out what the user had.")
    ] = False,
    report: Annotated[
        Path | None, typer.Option(help="With --run: write every number too, .json.")
    ] = None,
    device: Annotated[str, typer.Option(help="Where the model runs.")] = "cpu",
    precision: Precision = "auto",
) -> None:
    """Measure what a model retrieves of what was held out.

    Either several matching modes on the same requests: --index, --model, --requests and --out. Or
    runs of one model on a prepared data set, all items ranked: --run, --data and --split.
    """
    given = {
        "index": index, "model": model, "requests": requests, "out": out, "matching": matching,
        "plan": plan, "sids": sids, "k": k, "bucket": bucket, "fixed_ads": fixed_ads, "run": run,
        "data": data, "split": split, "fuse": fuse, "beam_width": beam_width,
        "drop_history": drop_history or None, "report": report,
    }  # fmt: skip
    given = {name for name, value in given.items() if value is not None}
    if _is_run_form(given):
        if precision != "auto":
            raise ConfigError("--precision is of evaluation on an index; leave it out with --run")
        _evaluate_runs(run, data, split, fuse or [], beam_width, drop_history, report, device)
    else:
        _evaluate_index(
            index, model, requests, out, matching, plan, sids, k, bucket, fixed_ads, device,
            precision,
        )  # fmt: skip


def _is_run_form(given: set[str]) -> bool:
    """Whether options ask for runs on a data set; refuse those of both forms, and half of one."""
    on_index = sorted(given.intersection(INDEX_FORM + INDEX_OPTIONS))
    on_runs = sorted(given.intersection(RUN_FORM + RUN_OPTIONS))
    if on_index and on_runs:
        raise ConfigError(
            f"{_listed(on_index[:1])} is of evaluation on an index, {_listed(on_runs[:1])} of runs "
            f"on a prepared data set; give {_listed(INDEX_FORM)}, or {_listed(RUN_FORM)}"
        )
    if not on_index and not on_runs:
        raise ConfigError(f"give {_listed(INDEX_FORM)}, or {_listed(RUN_FORM)}")
    missing = [name for name in (RUN_FORM if on_runs else INDEX_FORM) if name not in given]
    if missing:
        raise ConfigError(
            f"{_listed(missing[:1])} is missing; with {_listed(on_runs or on_index)} it is needed"
        )
    return bool(on_runs)


def _listed(names: tuple[str, ...] | list[str]) -> str:
    return ", ".join(f"--{name.replace('_', '-')}" for name in names)


def _evaluate_runs(
    runs: list[Path],
    data: Path,
    split: str,
    fused: list[Path],
    beam_width: int | None,
    drop_history: bool,
    report: Path | None,
    device: str,
) -> None:
    from rich.console import Console

    from grace.datasets import Split, load
    from grace.decode import check_device
    from grace.evaluate.ranking import evaluate_runs
    from grace.evaluate.ranking.table import tables
    from grace.files import check_writable
    from grace.train.sequence import rank, run_sids

    check_device(device)
    if report is not None:
        check_writable(report)
    if len(fused) % len(runs):
        raise ConfigError(
            f"--fuse: expected one for each of {len(runs)} --run, or a multiple, got {len(fused)}"
        )

    def rank_run(folder: Path, users: Split, depth: int):
        return rank(folder, users, depth, device, beam_width)

    evaluation = evaluate_runs(
        load(data),
        [[own, *fused[number :: len(runs)]] for number, own in enumerate(runs)],
        split,
        rank_run,
        run_sids,
        drop_history,
        ranked_with={"beam_width": beam_width},
    )
    console = Console()
    for table in tables(evaluation):
        console.print(table)
    if report is not None:
        evaluation.save(report)
        typer.echo(report)


def _evaluate_index(
    index: Path,
    model: Path,
    requests: Path,
    out: Path,
    matching: list[str] | None,
    plan: str | None,
    sids: int | None,
    k: list[int] | None,
    bucket: list[int] | None,
    fixed_ads: list[int] | None,
    device: str,
    precision: str,
) -> None:
    from rich.console import Console

    from grace.decode import check_device
    from grace.evaluate.chart import draw
    from grace.evaluate.run import FIXED_ADS
    from grace.evaluate.run import evaluate as measure
    from grace.evaluate.table import tables
    from grace.model.folder import open_model

    check_device(device)
    out.mkdir(parents=True, exist_ok=True)
    opened = Index.open(index)
    evaluation = measure(
        opened,
        open_model(model),
        [row for _, row in iter_rows(requests)],
        modes=tuple(dict.fromkeys(matching or MATCHERS)),
        plan=parse_plan(plan, sids, opened.num_levels),
        ks=tuple(sorted(set(k or (10, 50)))),
        bucket_bounds=sorted(set(bucket)) if bucket else None,
        fixed_ads=tuple(sorted(set(fixed_ads or FIXED_ADS))),
        device=device,
        precision=precision,
    )
    console = Console()
    for table in tables(evaluation):
        console.print(table)
    for error in evaluation.errors:
        typer.echo(f"request {error['request']}: {error['field']}: {error['message']}", err=True)
    typer.echo(f"{evaluation.save(out)}\n{draw(evaluation, out / 'evaluation.png')}")
