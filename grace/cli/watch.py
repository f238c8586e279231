"""`grace index watch`: follow a directory of deltas."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Annotated

import typer

from grace.catalog import Schema
from grace.cli.index import AsJson
from grace.cli.options import Workers, num_cores
from grace.errors import SchemaError
from grace.index.deltas import DeltaDirectory
from grace.index.history import CURRENT, DEFAULT_KEEP, VERSIONS, read_current
from grace.index.storage import read_manifest


def watch(
    index: Annotated[Path, typer.Option(help="Directory of the index; may be empty at first.")],
    changes: Annotated[
        Path, typer.Option(help="Directory of deltas, .parquet or .jsonl, in order of name.")
    ],
    schema: Annotated[
        Path | None, typer.Option(help="Targeting schema, YAML; by default the index's own.")
    ] = None,
    interval: Annotated[
        float, typer.Option(min=0, max=86_400, help="Seconds between looks.")
    ] = 5.0,
    keep: Annotated[int, typer.Option(min=1, help="Versions to keep on disk.")] = DEFAULT_KEEP,
    once: Annotated[bool, typer.Option(help="End when every delta is applied.")] = False,
    resume: Annotated[bool, typer.Option(help="Go on after a rollback.")] = False,
    workers: Workers = None,
    as_json: AsJson = False,
) -> None:
    """Merge deltas into an index as they come and publish versions; readers move to them.

    A delta has a catalogue's columns and optionally `removed`. It counts when it has its name:
    write it as NAME.tmp and rename it. A bad one ends the command and changes nothing.
    """
    from grace.index.watch import Watcher

    workers = workers or num_cores()
    source = DeltaDirectory(changes, _schema(index, schema), workers)
    watcher = Watcher(index, source, keep, resume, workers)
    while True:
        step = watcher.step()
        if step is not None:
            line = json.dumps(step.to_dict()) if as_json else _sentence(step)
            typer.echo(line)
        elif once:
            return
        else:
            time.sleep(interval)


def _sentence(step: object) -> str:
    return (
        f"version {step.version}: {step.deltas:,} deltas to {step.watermark}, {step.changed:,} ads "
        f"written, {step.removed:,} removed; {step.ads:,} ads on {step.sids:,} SIDs"
    )


def _schema(directory: Path, path: Path | None) -> Schema:
    """Return the index's schema, or the file's where there is no index yet."""
    given = None if path is None else Schema.load(path)
    if not (directory / CURRENT).exists():
        if given is None:
            raise SchemaError(f"{directory}: holds no index yet; name its schema with --schema")
        return given
    version = read_current(directory)
    held = Schema.from_dict(read_manifest(directory / VERSIONS / version, version)["schema"])
    if given is not None and given != held:
        raise SchemaError(
            f"{path}: differs from the index's own schema; build the index again to change it"
        )
    return held
