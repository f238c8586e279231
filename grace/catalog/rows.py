"""Rows in and out: Parquet, JSON Lines and tables in memory, always as a stream."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from grace.catalog.values import describe
from grace.errors import CatalogError
from grace.files import atomic_write

BATCH_ROWS = 16_384
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
    if isinstance(source, (str, os.PathLike)):
        path = Path(source)
        if not path.is_file():
            raise CatalogError(f"{path}: no such file")
        if path.suffix == ".parquet":
            yield from _parquet_rows(path, columns)
        elif path.suffix == ".jsonl":
            yield from _json_rows(path)
        else:
            raise CatalogError(f"{path}: expected a file ending in {' or '.join(SUFFIXES)}")
    elif hasattr(source, "__arrow_c_stream__"):
        yield from _table_rows(pa.table(source), columns)
    else:
        for number, row in enumerate(source, start=1):
            if not isinstance(row, dict):
                raise CatalogError(f"expected a dict, got {describe(row)}", number)
            yield number, row


def write_rows(path: str | os.PathLike, rows: Iterable[dict]) -> None:
    """Write rows to a `.parquet` or `.jsonl` file, whole or not at all.

    Parquet takes its column types from the first 16,384 rows.

    Raises:
        CatalogError: if the suffix is another, or a row does not fit the columns' types.
    """
    path = Path(path)
    if path.suffix not in SUFFIXES:
        raise CatalogError(f"{path}: expected a name ending in {' or '.join(SUFFIXES)}")
    with atomic_write(path) as file:
        if path.suffix == ".jsonl":
            for row in rows:
                file.write(json.dumps(row, ensure_ascii=False, default=_iso).encode() + b"\n")
            return
        writer = None
        for batch in _batches(rows):
            try:
                schema = writer.schema if writer else None
                table = pa.Table.from_pylist(batch, schema=schema)
            except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
                raise CatalogError(f"{path}: rows do not share column types: {error}") from None
            writer = writer or pq.ParquetWriter(file, table.schema)
            writer.write_table(table)
        if writer is None:
            raise CatalogError(f"{path}: there are no rows to write")
        writer.close()


def _batches(rows: Iterable[dict]) -> Iterator[list[dict]]:
    batch = []
    for row in rows:
        batch.append(row)
        if len(batch) == BATCH_ROWS:
            yield batch
            batch = []
    if batch:
        yield batch


def _iso(value: object) -> str:
    if hasattr(value, "isoformat"):
        return value.isoformat()
    raise CatalogError(f"JSON cannot hold {describe(value)}")


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


def _parquet_rows(path: Path, columns: Iterable[str] | None) -> Iterator[Row]:
    try:
        with pq.ParquetFile(path) as file:
            _refuse_repeated_names(file.schema_arrow.names, str(path))
            # A column's name is the root of its leaves' names; leaves are what Parquet projects.
            names = [n for n in file.schema_arrow.names if columns is None or n in set(columns)]
            first = 1
            for batch in file.iter_batches(BATCH_ROWS, columns=names):
                yield from _batch_rows(batch, first)
                first += batch.num_rows
    except (pa.ArrowException, OSError) as error:
        raise CatalogError(f"{path}: cannot be read as Parquet: {error}") from None


def _table_rows(table: pa.Table, columns: Iterable[str] | None) -> Iterator[Row]:
    _refuse_repeated_names(table.column_names, "the table")
    if columns is not None:
        table = table.select([name for name in table.column_names if name in set(columns)])
    first = 1
    for batch in table.to_batches(BATCH_ROWS):
        yield from _batch_rows(batch, first)
        first += batch.num_rows


def _refuse_repeated_names(names: list[str], where: str) -> None:
    for name in names:
        if names.count(name) > 1:
            raise CatalogError(f"{where}: has two columns called {name!r}")


def _batch_rows(batch: pa.RecordBatch, first: int) -> Iterator[Row]:
    names = batch.schema.names
    if not names:  # none of the wanted columns is there: still as many rows, all of them empty
        yield from ((number, {}) for number in range(first, first + batch.num_rows))
        return
    try:
        values = [_whole_microseconds(column).to_pylist() for column in batch.columns]
    except (pa.ArrowException, ValueError, OverflowError) as error:
        last = first + batch.num_rows - 1
        raise CatalogError(f"rows {first}-{last} cannot be read: {error}") from None
    for number, row in enumerate(zip(*values, strict=True), start=first):
        yield number, dict(zip(names, row, strict=True))


def _whole_microseconds(column: pa.Array) -> pa.Array:
    """Round times up: `start <= at` and `at < end` then stay as they were for whole `at`."""
    import pyarrow.compute as pc

    if pa.types.is_date(column.type):
        return column.cast(pa.timestamp("us"))
    if not pa.types.is_timestamp(column.type) or column.type.unit == "us":
        return column
    if column.type.tz is not None:  # local time would be ambiguous when clocks go back
        column = column.cast(pa.timestamp(column.type.unit, tz="UTC"))
    if column.type.unit == "ns":
        column = pc.ceil_temporal(column, unit="microsecond")
    return column.cast(pa.timestamp("us", tz=column.type.tz))
