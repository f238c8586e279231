"""`grace demo`: real people, real behaviour, real advertisers' rules, end to end."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer


def demo(
    data: Annotated[
        Path | None,
        typer.Option(help="Directory of MovieLens-100K; by default it is downloaded once."),
    ] = None,
    out: Annotated[
        Path, typer.Option(help="Folder for catalogue, index, model, requests and report.")
    ] = Path("runs/demo"),
    seeds: Annotated[
        int, typer.Option(min=1, help="How often rules are dealt and a model is trained.")
    ] = 5,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the report as JSON for programs.")
    ] = False,
) -> None:
    """Train on real behaviour and retrieve under real targeting rules, in every matching mode."""
    from rich.console import Console

    from grace.datasets.movielens import load_movielens
    from grace.demo.pipeline import run_demo
    from grace.demo.settings import DemoSettings
    from grace.demo.show import show

    def say(line: str) -> None:
        if sys.stderr.isatty():
            typer.echo(line, err=True)

    settings = DemoSettings(seeds=tuple(range(seeds)))
    say("MovieLens-100K")
    report = run_demo(load_movielens(data), out, settings, say)
    if as_json:
        typer.echo(json.dumps(report.to_dict(), ensure_ascii=False))
        return
    console = Console()
    if not console.is_terminal:
        console.width = 120
    show(report, out, console)
