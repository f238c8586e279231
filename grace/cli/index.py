"""`grace index build | info | verify`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from grace.cli.options import Workers, num_cores
from grace.index import Index, build_index
from grace.index.history import DEFAULT_KEEP
from grace.index.unions import UNIONS

IndexDirectory = Annotated[Path, typer.Option("--index", help="Directory of the index.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]


def build(
    catalog: Annotated[Path, typer.Option(help="Catalogue with SIDs, .parquet or .jsonl.")],
    schema: Annotated[Path, typer.Option(help="Targeting schema, YAML.")],
    out: Annotated[Path, typer.Option(help="Directory to write the index to.")],
    bloom_bits: Annotated[int, typer.Option(help="Bits of a Bloom filter, times 64.")] = 256,
    bloom_hashes: Annotated[int, typer.Option(help="Bits that one value sets.")] = 4,
    watermark: Annotated[
        str | None,
        typer.Option(help="Last delta that the catalogue holds; `index watch` goes on after it."),
    ] = None,
    keep: Annotated[int, typer.Option(min=1, help="Versions to keep on disk.")] = DEFAULT_KEEP,
    workers: Workers = None,
    as_json: AsJson = False,
) -> None:
    """Build an index from a catalogue and make it the directory's current version."""
    index = build_index(
        catalog, schema, out, bloom_bits, bloom_hashes, watermark, keep, workers or num_cores()
    )
    counts = {
        "version": index.version,
        "ads": index.num_ads,
        "sids": index.num_sids,
        "levels": index.num_levels,
        "vocab_size": index.vocab_size,
    }
    if as_json:
        typer.echo(json.dumps(counts))
    else:
        typer.echo(
            f"{out}: version {index.version}, {index.num_ads:,} ads on {index.num_sids:,} SIDs of "
            f"{index.num_levels} tokens"
        )


def info(
    index: IndexDirectory,
    matching: Annotated[str, typer.Option(help=" | ".join(UNIONS))] = "bitmask+bloom",
    as_json: AsJson = False,
) -> None:
    """Show an index's sizes as GRACE's Tables 1 and 2: transitions, matcher rows, fill rates."""
    from grace.index.info import index_info

    found = index_info(Index.open(index), matching)
    if as_json:
        typer.echo(json.dumps(found.to_dict(), indent=1))
        return
    from rich.console import Console
    from rich.table import Table

    console = Console()
    if not console.is_terminal:
        console.width = 120  # a file has no width that cells should wrap at
    console.print(
        f"version {found.version}: {found.ads:,} ads ({found.paused_ads:,} paused, "
        f"{found.bid_off_ads:,} with their bid off) on "
        f"{found.sids:,} SIDs of {found.levels} tokens below {found.vocab_size:,}; "
        f"{found.array_bytes / 1e6:,.1f} MB"
    )
    per_sid = found.ads_per_sid
    console.print(f"ads per SID: p50 {per_sid['p50']}, p99 {per_sid['p99']}, max {per_sid['max']}")
    distinct = ", ".join(f"{name} {count:,}" for name, count in found.rules.items())
    console.print(
        f"distinct rules: {distinct or 'none'}; windows {found.windows:,}; "
        f"signatures {found.signatures:,}"
    )
    storage = Table(title=f"Storage of {matching}: a row per partition → each distinct row once")
    for heading in ("prefix length", "transitions", "bitmask rows", "bitmask MB", "Bloom rows",
                    "Bloom MB"):  # fmt: skip
        storage.add_column(heading, justify="right")
    fill = Table(title="Mean fill rate: share of 1 bits, lower is more selective")
    for heading in ("prefix length", "bitmask", "Bloom"):
        fill.add_column(heading, justify="right")
    for level in found.per_level:
        length = str(level.level) if level.level else "0 (root)"
        cells = []
        for matcher in (level.bitmask, level.bloom):
            cells += [
                f"{matcher.rows:,} → {matcher.distinct_rows:,}",
                f"{matcher.num_bytes / 1e6:.3f} → {matcher.distinct_bytes / 1e6:.3f}",
            ]
        storage.add_row(length, f"{level.transitions:,}", *cells)
        fill.add_row(length, f"{level.bitmask.fill_rate:.3f}", f"{level.bloom.fill_rate:.3f}")
    console.print(storage)
    console.print(fill)


def verify(index: IndexDirectory, as_json: AsJson = False) -> None:
    """Check every byte of an index against its manifest, and that its arrays make sense."""
    from grace.index.verify import verify_index

    opened = Index.open(index)
    checks = verify_index(opened)
    if as_json:
        typer.echo(json.dumps({"version": opened.version, "checks": checks}))
    else:
        typer.echo("\n".join(f"ok  {check}" for check in checks))
