"""Rows in: Parquet, JSON Lines and tables in memory, always as a stream."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow as pa

from grace.catalog.batches import open_batches, whole_microseconds
from grace.catalog.values import describe
from grace.errors import CatalogError

SUFFIXES = (".parquet", ".jsonl")

Row = tuple[int, dict]


def iter_rows(source: object, columns: Iterable[str] | None = None) -> Iterator[Row]:
    """Stream `(row number, row)` from a catalogue.

    Args:
        source: the path of a `.parquet` or `.jsonl` file, a table (pyarrow, or any object that
            speaks the Arrow stream protocol, such as a pandas or polars frame), or an iterable of
            dicts.
        columns: read only these, where the format can leave others out.

    Yields:
        The 1-based row number (for JSON Lines the line's number; blank lines are skipped) and the
        row. A time column comes as datetimes, rounded up to whole microseconds.

    Raises:
        CatalogError: if the file is missing, damaged or of another format, naming the line.
    """
    with open_batches(source, columns) as batches:
        if batches is not None:
            for group in range(batches.num_groups):
                for first, batch in batches.read(group):
                    yield from batch_rows(batch, first)
            return
    if isinstance(source, (str, os.PathLike)):
        path = Path(source)
        if path.suffix != ".jsonl":
            raise CatalogError(f"{path}: expected a file ending in {' or '.join(SUFFIXES)}")
        yield from _json_rows(path)
    else:
        for number, row in enumerate(source, start=1):
            if not isinstance(row, dict):
                raise CatalogError(f"expected a dict, got {describe(row)}", number)
            yield number, row


def batch_rows(batch: pa.RecordBatch, first: int) -> Iterator[Row]:
    """Yield the rows of a batch whose first row has the number `first`, as `iter_rows` does."""
    names = batch.schema.names
    if not names:  # none of the wanted columns is there: still as many rows, all of them empty
        yield from ((number, {}) for number in range(first, first + batch.num_rows))
        return
    values = [
        _values(name, column, first) for name, column in zip(names, batch.columns, strict=True)
    ]
    for number, row in enumerate(zip(*values, strict=True), start=first):
        yield number, dict(zip(names, row, strict=True))


def _values(name: str, column: pa.Array, first: int) -> list:
    try:
        return whole_microseconds(column).to_pylist()
    except (pa.ArrowException, ValueError, OverflowError) as error:
        if len(column) == 1:
            raise CatalogError(f"cannot be read: {error}", first, name) from None
        for row in range(len(column)):
            _values(name, column[row : row + 1], first + row)  # one of them raises
        raise


def unique_keys(pairs: list[tuple[str, object]]) -> dict:
    """Make a JSON object; of a key given twice, one value would be lost without a word.

    Raises:
        ValueError: naming the key.
    """
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        repeated = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"the key {repeated!r} is given twice")
    return found


def _json_rows(path: Path) -> Iterator[Row]:
    with open(path, "rb") as file:
        for number, line in enumerate(file, start=1):
            if line.isspace():
                continue
            try:
                row = json.loads(line, object_pairs_hook=unique_keys)
            except (ValueError, RecursionError) as error:
                raise CatalogError(f"{path}: not a JSON object: {error}", number) from None
            if not isinstance(row, dict):
                raise CatalogError(f"{path}: expected a JSON object, got {describe(row)}", number)
            yield number, row
