"""`grace sid fit`: make semantic IDs for a catalogue."""

from __future__ import annotations

import json
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from grace.files import atomic_write

if TYPE_CHECKING:
    from rich.console import Console

    from grace.sid import SidReport


class Collisions(StrEnum):
    """What to do with items that quantise alike."""

    cluster = "cluster"
    resolve = "resolve"
    reassign = "reassign"
    extra_token = "extra-token"


class Quantizer(StrEnum):
    """What turns vectors into codes."""

    kmeans = "kmeans"
    balanced_kmeans = "balanced-kmeans"
    rq_vae = "rq-vae"
    random = "random"


def fit(
    catalog: Annotated[Path, typer.Option(help="Catalogue, .parquet or .jsonl.")],
    out: Annotated[Path, typer.Option(help="The same catalogue with SIDs, .parquet or .jsonl.")],
    text: Annotated[
        list[str] | None,
        typer.Option(
            help="Text column; may be repeated. Where no source is named: title and description."
        ),
    ] = None,
    text_encoder: Annotated[
        str, typer.Option(help="tfidf, minilm, or sentence-transformer:<folder or name>.")
    ] = "tfidf",
    text_weight: Annotated[float, typer.Option(help="Weight of the text.")] = 1.0,
    text_cache: Annotated[
        Path | None,
        typer.Option(help="Folder where minilm keeps its vectors; that of --out by default."),
    ] = None,
    attributes: Annotated[
        list[str] | None, typer.Option(help="Column of labels, such as genres; may be repeated.")
    ] = None,
    attributes_weight: Annotated[float, typer.Option(help="Weight of the attributes.")] = 1.0,
    embedding_column: Annotated[
        str | None, typer.Option(help="Column of lists of floats to make SIDs from.")
    ] = None,
    embedding_file: Annotated[
        Path | None, typer.Option(help="The same from a .npy file, rows by ascending ad id.")
    ] = None,
    embedding_weight: Annotated[float, typer.Option(help="Weight of the embeddings.")] = 1.0,
    behaviour: Annotated[
        Path | None,
        typer.Option(
            help='Training histories, rows {"items": [ad_id, ...]}, one a user, oldest first.'
        ),
    ] = None,
    behaviour_weight: Annotated[float, typer.Option(help="Weight of the behaviour.")] = 1.0,
    window: Annotated[
        int, typer.Option(min=1, max=2**31, help="Events of a history so far apart are neighbours.")
    ] = 5,
    dimensions: Annotated[
        int, typer.Option(min=1, help="Dimensions of the TF-IDF and behaviour vectors.")
    ] = 64,
    levels: Annotated[int, typer.Option(min=1, max=32, help="Tokens of a SID.")] = 3,
    codes: Annotated[int, typer.Option(min=2, help="Codes per level.")] = 64,
    seed: Annotated[
        int, typer.Option(min=0, max=2**31, help="Seed of the SVDs and of the quantiser.")
    ] = 0,
    quantizer: Annotated[
        Quantizer, typer.Option(help="What makes codes of vectors; random is the control.")
    ] = Quantizer.kmeans,
    rq_vae_steps: Annotated[
        int | None, typer.Option(min=1, help="Training steps of the RQ-VAE; 3000 by default.")
    ] = None,
    device: Annotated[
        str, typer.Option(help="Where minilm and the RQ-VAE run: auto | cpu | cuda.")
    ] = "auto",
    collisions: Annotated[
        Collisions,
        typer.Option(help="Leave items that quantise alike on one SID, or make SIDs unique."),
    ] = Collisions.cluster,
    replace_sid: Annotated[
        bool, typer.Option("--replace-sid", help="Replace SIDs that the catalogue has.")
    ] = False,
    codebooks: Annotated[
        Path | None, typer.Option(help="Save the codebooks too, .safetensors.")
    ] = None,
    report: Annotated[Path | None, typer.Option(help="Save the report too, .json.")] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the report as JSON instead of tables.")
    ] = False,
) -> None:
    """Make semantic IDs for the items of a catalogue."""
    from rich.console import Console

    # scikit-learn is slow to load, and other commands need none
    from grace.sid import RqVaeConfig
    from grace.sid.catalogue import check_paths, fit_catalog

    others = {"codebooks": codebooks, "report": report}
    check_paths(catalog, behaviour, out, others, embedding_file)
    fitted = fit_catalog(
        catalog,
        out,
        text=tuple(text or ()),
        text_encoder=text_encoder,
        text_weight=text_weight,
        text_cache=text_cache,
        attributes=tuple(attributes or ()),
        attributes_weight=attributes_weight,
        embedding_column=embedding_column,
        embedding_file=embedding_file,
        embedding_weight=embedding_weight,
        behaviour=behaviour,
        behaviour_weight=behaviour_weight,
        window=window,
        dimensions=dimensions,
        levels=levels,
        codes=codes,
        seed=seed,
        quantizer=quantizer.value,
        rq_vae=RqVaeConfig(steps=rq_vae_steps) if rq_vae_steps else None,
        device=device,
        collisions=collisions.value,
        replace_sid=replace_sid,
        codebooks=codebooks,
    )
    content = json.dumps(fitted.report.to_dict(), indent=1)
    if report is not None:
        with atomic_write(report) as file:
            file.write(content.encode() + b"\n")
    if as_json:
        typer.echo(content)
    else:
        show(fitted.report, Console())


def show(report: SidReport, console: Console) -> None:
    """Print a report as tables."""
    from rich.table import Table

    levels = Table(title=f"Codes per level (of {report.codes})")
    decoded = report.quantizer == "rq-vae"  # else both errors are one
    headings = ("level", "used", "share", "bits", "perplexity", "resolved", "left", "error")
    for heading in (*headings, *(["decoded"] if decoded else [])):
        levels.add_column(heading, justify="right")
    for level in report.levels:
        levels.add_row(
            str(level.level),
            f"{level.used:,}",
            f"{level.used_share:.1%}",
            f"{level.entropy_bits:.2f}",
            f"{level.perplexity:.1f}",
            f"{level.resolved:.1%}",
            f"{level.ambiguity:.1f}",
            "" if level.relative_error is None else f"{level.relative_error:.3f}",
            *([f"{level.reconstruction_error:.3f}"] if decoded else []),
        )
    console.print(levels)
    prefixes = Table(title="Prefixes of the semantic IDs")
    for heading in ("length", "distinct", "items that share one", "items of the largest"):
        prefixes.add_column(heading, justify="right")
    for prefix in report.prefixes:
        counts = (prefix.distinct, prefix.items_sharing, prefix.most_items)
        prefixes.add_row(str(prefix.length), *(f"{count:,}" for count in counts))
    console.print(prefixes)
    sids = Table(title="Semantic IDs", show_header=False)
    ads = report.ads_per_sid
    rows = {
        "items": f"{report.items:,}",
        "distinct vectors": f"{report.distinct_vectors:,}",
        "distinct SIDs": f"{report.distinct_sids:,}",
        "collision rate": f"{report.collision_rate:.2%}",
        "SIDs with several ads": f"{report.sids_shared:,}",
        "ads per SID (p50, p99, max)": f"{ads['p50']:g}, {ads['p99']:g}, {ads['max']:,}",
    }
    if report.collisions in ("resolve", "reassign"):
        rows["moved to be unique"] = f"{report.moved_items:,}"
        rows["moved to another prefix"] = f"{report.moved_prefixes:,}"
    for source in report.sources:
        rows[f"items without {source.name}"] = f"{source.items_without:,}"
        if source.name == "behaviour":
            rows["unknown items in histories"] = f"{report.unknown_behaviour_items:,}"
    for name, value in rows.items():
        sids.add_row(name, value)
    console.print(sids)
    for level in report.levels:
        if level.codes < report.codes:
            console.print(
                f"Level {level.level} needs {level.codes} of {report.codes} codes: there are no "
                "more distinct vectors left at it."
            )
