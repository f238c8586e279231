"""`grace evaluate`: how well a model retrieves what was held out, under each matching mode."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from grace.catalog import iter_rows
from grace.cli.options import Precision, parse_plan
from grace.index import MATCHERS, Index


def evaluate(
    index: Annotated[Path, typer.Option(help="Directory of the index.")],
    model: Annotated[Path, typer.Option(help="Directory of a trained model.")],
    requests: Annotated[
        Path, typer.Option(help='Requests, .jsonl, each with "target", the ad held out from it.')
    ],
    out: Annotated[Path, typer.Option(help="Directory for evaluation.json and evaluation.png.")],
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
    device: Annotated[str, typer.Option(help="Where the model runs.")] = "cpu",
    precision: Precision = "auto",
) -> None:
    """Measure recall, NDCG and eligibility under several matching modes on the same requests."""
    from rich.console import Console

    from grace.decode import check_device
    from grace.evaluate.chart import draw
    from grace.evaluate.run import FIXED_ADS
    from grace.evaluate.run import evaluate as measure
    from grace.evaluate.table import tables
    from grace.model import load_model

    check_device(device)
    out.mkdir(parents=True, exist_ok=True)
    opened = Index.open(index)
    evaluation = measure(
        opened,
        load_model(model),
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
