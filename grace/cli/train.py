"""`grace train`: fit a model to behaviour."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def train(
    index: Annotated[Path, typer.Option(help="Index of the catalogue, from grace index build.")],
    features: Annotated[Path, typer.Option(help="features.yaml: what the model reads.")],
    train: Annotated[
        Path,
        typer.Option(
            help='Training rows, JSON Lines {"features", "target"?}; without a target, the events '
            "of the row's sequence are the targets."
        ),
    ],
    valid: Annotated[
        Path, typer.Option(help='Validation rows, JSON Lines {"features", "target"}.')
    ],
    out: Annotated[Path, typer.Option(help="Run folder; afterwards it is what --model takes.")],
    config: Annotated[
        Path | None, typer.Option(help="TOML file with the tables [model] and [train].")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on where the run in --out stopped.")
    ] = False,
    device: Annotated[str, typer.Option(help="Where the model runs: cpu, cuda, ...")] = "cpu",
) -> None:
    """Train a model; keep the one with the smallest validation loss."""
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
