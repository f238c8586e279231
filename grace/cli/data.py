"""`grace data prepare`: raw files of a public data set to checked Parquet."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def prepare(
    name: Annotated[str, typer.Argument(help="beauty | sports | toys | movielens")],
    raw: Annotated[
        Path, typer.Option(help="Folder of the raw files; docs/datasets.md names them.")
    ],
    out: Annotated[Path, typer.Option(help="Folder to write.")],
) -> None:
    """Check a data set against its published statistics, split it and write it as Parquet."""
    from rich.console import Console
    from rich.table import Table

    from grace import datasets
    from grace.errors import ConfigError

    if name not in datasets.DATASETS:
        raise ConfigError(f"NAME: expected {' | '.join(datasets.DATASETS)}, got {name!r}")
    manifest = datasets.prepare(datasets.DATASETS[name], raw, out)
    table = Table(title=f"{name}: as published by {manifest['published']['source']}")
    table.add_column("count")
    table.add_column("found", justify="right")
    for count, found in manifest["counts"].items():
        table.add_row(count.replace("_", " "), f"{found:,}")
    Console().print(table)
