"""`grace index versions | rollback`."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from grace.cli.index import AsJson, IndexDirectory
from grace.index.history import DEFAULT_KEEP


def versions(index: IndexDirectory, as_json: AsJson = False) -> None:
    """List the versions on disk, the current one first, then the latest first."""
    from grace.index.versions import list_versions

    found = list_versions(index)
    if as_json:
        typer.echo(json.dumps([version.to_dict() for version in found], indent=1))
        return
    from rich.console import Console
    from rich.table import Table

    console = Console()
    if not console.is_terminal:
        console.width = 140  # a file has no width that cells should wrap at
    table = Table()
    for heading in ("", "version", "created", "by", "ads", "SIDs", "parent", "watermark"):
        table.add_column(heading, justify="right" if heading in ("ads", "SIDs") else "left")
    for version in found:
        table.add_row(
            "current" if version.current else "",
            version.version,
            version.created,
            version.action,
            f"{version.counts['ads']:,}",
            f"{version.counts['sids']:,}",
            version.parent or "",
            version.watermark or "",
        )
    console.print(table)


def rollback(
    index: IndexDirectory,
    to: Annotated[
        str | None, typer.Option(help="Version; by default the one before the current one.")
    ] = None,
    keep: Annotated[int, typer.Option(min=1, help="Versions to keep on disk.")] = DEFAULT_KEEP,
    as_json: AsJson = False,
) -> None:
    """Make an older version current again; readers move to it, a running `index watch` stops."""
    from grace.index.versions import rollback as roll_back

    publication = roll_back(index, to, keep)
    if as_json:
        typer.echo(json.dumps(vars(publication)))
    else:
        typer.echo(
            f"{index}: version {publication.version}, watermark {publication.watermark or 'none'}"
        )
