"""`grace train`: fit a model to behaviour, in one of two forms."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from grace.errors import ConfigError

INDEX_FORM = ("index", "features", "train", "valid")
DATA_FORM = ("data", "model", "sids", "seed")


def train(
    out: Annotated[Path, typer.Option(help="Run folder.")],
    index: Annotated[
        Path | None, typer.Option(help="Index of the catalogue, from grace index build.")
    ] = None,
    features: Annotated[
        Path | None, typer.Option(help="features.yaml: what the model reads.")
    ] = None,
    train: Annotated[
        Path | None,
        typer.Option(
            help='Training rows, JSON Lines {"features", "target"?}; without a target, the events '
            "of the row's sequence are the targets."
        ),
    ] = None,
    valid: Annotated[
        Path | None, typer.Option(help='Validation rows, JSON Lines {"features", "target"}.')
    ] = None,
    data: Annotated[
        Path | None, typer.Option(help="Prepared data set, from grace data prepare.")
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="With --data: tiger | grace | causal | sasrec | popularity.")
    ] = None,
    sids: Annotated[
        Path | None,
        typer.Option(help="With --data: catalogue with SIDs, from grace sid fit; generators."),
    ] = None,
    config: Annotated[
        Path | None, typer.Option(help="TOML file with the tables [model] and [train].")
    ] = None,
    seed: Annotated[
        int | None, typer.Option(min=0, help="With --data: in place of the recipe's seed.")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on where the run in --out stopped.")
    ] = False,
    device: Annotated[str, typer.Option(help="Where the model runs: cpu, cuda, ...")] = "cpu",
) -> None:
    """Train a model and keep the best by validation.

    Either GRACE's encoder-decoder over declared features of requests: --index, --features, --train
    and --valid. Or a sequence model over a prepared data set: --data, --model and --sids.
    """
    given = {"index": index, "features": features, "train": train, "valid": valid,
             "data": data, "model": model, "sids": sids, "seed": seed}  # fmt: skip
    _check_form({name for name, value in given.items() if value is not None})
    if data is not None:
        _train_on_data(data, model, sids, config, seed, out, resume, device)
    else:
        _train_on_rows(index, features, train, valid, config, out, resume, device)


def _check_form(given: set[str]) -> None:
    """Refuse options of both forms, and a form that is not whole."""
    rows, data = given.intersection(INDEX_FORM), given.intersection(DATA_FORM)
    if rows and data:
        raise ConfigError(
            f"--{min(rows)} is of training on an index, --{min(data)} of training on a prepared "
            f"data set; give {_listed(INDEX_FORM)}, or {_listed(DATA_FORM)}"
        )
    needed = ("data", "model") if data else INDEX_FORM
    missing = [name for name in needed if name not in given]
    if missing and given:
        raise ConfigError(f"--{missing[0]} is missing; with {_listed(sorted(given))} it is needed")
    if missing:
        raise ConfigError(f"give {_listed(INDEX_FORM)}, or {_listed(DATA_FORM)}")


def _listed(names: tuple[str, ...] | list[str]) -> str:
    return ", ".join(f"--{name}" for name in names)


def _train_on_data(
    data: Path,
    model: str,
    sids: Path | None,
    config: Path | None,
    seed: int | None,
    out: Path,
    resume: bool,
    device: str,
) -> None:
    import dataclasses

    from grace.train.sequence import Recipe, train_sequences

    recipe = Recipe() if config is None else Recipe.load(config)
    if seed is not None:
        settings = dataclasses.replace(recipe.train, seed=seed)
        recipe = dataclasses.replace(recipe, train=settings)
    report = train_sequences(data, model, out, recipe, sids, resume, device)
    typer.echo(
        f"{out}: step {report.best_step} of {report.steps}: validation recall@10 "
        f"{report.best['recall@10']:.4f}, ndcg@10 {report.best['ndcg@10']:.4f}"
    )


def _train_on_rows(
    index: Path,
    features: Path,
    train: Path,
    valid: Path,
    config: Path | None,
    out: Path,
    resume: bool,
    device: str,
) -> None:
    from grace.index import Index
    from grace.model import FeatureSpec
    from grace.train import RunConfig
    from grace.train import train as fit

    report = fit(
        Index.open(index),
        FeatureSpec.load(features),
        train,
        valid,
        out,
        RunConfig() if config is None else RunConfig.load(config),
        resume,
        device,
    )
    best = report.best
    typer.echo(
        f"{out}: epoch {best['epoch']} of {len(report.history)}: validation loss "
        f"{best['valid_loss']:.4f}, recall@{report.recall_at} {best['valid_recall']:.4f}"
    )
    typer.echo(
        f"skipped, not in the index: {report.unknown_targets} targets, "
        f"{report.unknown_events} events"
    )
