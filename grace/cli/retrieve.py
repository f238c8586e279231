"""`grace retrieve`: requests in, result lines out."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, BinaryIO

import typer

from grace.catalog.rows import unique_keys
from grace.cli.options import Precision, parse_plan
from grace.errors import DataError, RequestError
from grace.files import atomic_write, check_writable
from grace.index import MATCHERS, Index
from grace.progress import progress
from grace.retrieve import Result, Retriever

STREAM = "-"


def retrieve(
    index: Annotated[Path, typer.Option(help="Directory of the index.")],
    model: Annotated[Path, typer.Option(help="Directory of a trained model.")],
    requests: Annotated[str, typer.Option(help="Requests, JSON Lines; - is standard input.")],
    out: Annotated[str, typer.Option(help="Result lines; - is standard output.")],
    matching: Annotated[str, typer.Option(help=" | ".join(MATCHERS))] = "exact",
    plan: Annotated[str | None, typer.Option(help="Beams entering each step: 1,256,512.")] = None,
    sids: Annotated[
        int | None, typer.Option(help="SIDs to keep; by default the last width.")
    ] = None,
    top_k: Annotated[int | None, typer.Option(help="Ads per request; by default all.")] = None,
    device: Annotated[str, typer.Option(help="Where the model runs.")] = "cpu",
    batch_size: Annotated[int, typer.Option(help="Requests decoded together, at most 32.")] = 16,
    precision: Precision = "auto",
) -> None:
    """Answer requests with eligible ads; a request that fails has its error in its own line."""
    if out != STREAM:
        check_writable(out)
    opened = Index.open(index)
    retriever = Retriever(
        opened, model, parse_plan(plan, sids, opened.num_levels), matching, device, batch_size,
        top_k, precision,
    )  # fmt: skip
    answered = failed = 0
    with _reader(requests) as source, _writer(out) as sink, progress("retrieving") as advance:
        for batch in _batches(source, batch_size):
            good = [line for line in batch if not isinstance(line, Result)]
            results = iter(retriever.retrieve(good))
            for line in batch:
                result = line if isinstance(line, Result) else next(results)
                sink.write(json.dumps(result.to_dict(), ensure_ascii=False).encode() + b"\n")
                answered, failed = answered + 1, failed + (result.error is not None)
            sink.flush()
            advance(len(batch))
    typer.echo(f"{answered:,} requests, {failed:,} failed", err=True)


def _batches(source: BinaryIO, size: int) -> Iterator[list[object]]:
    """Yield parsed lines in batches; a line that is no JSON comes as its failed result."""
    batch: list[object] = []
    for number, line in enumerate(source, start=1):
        if line.isspace():
            continue
        try:
            batch.append(json.loads(line, object_pairs_hook=unique_keys))
        except (ValueError, RecursionError) as error:
            fault = RequestError("request", f"line {number} is not JSON: {error}")
            batch.append(Result.failed(None, fault))
        if len(batch) == size:
            yield batch
            batch = []
    if batch:
        yield batch


@contextlib.contextmanager
def _reader(name: str) -> Iterator[BinaryIO]:
    if name == STREAM:
        if sys.stdin is None:
            raise DataError("standard input is closed")
        yield sys.stdin.buffer
        return
    if not Path(name).exists() or Path(name).is_dir():
        raise DataError(f"{name}: no such file of requests")
    with open(name, "rb") as file:
        yield file


@contextlib.contextmanager
def _writer(name: str) -> Iterator[BinaryIO]:
    if name == STREAM:
        if sys.stdout is None:
            raise DataError("standard output is closed")
        yield sys.stdout.buffer
        return
    with atomic_write(name) as file:
        yield file
