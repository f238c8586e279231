"""Rows in and out: Parquet, JSON Lines and tables in memory, always as a stream."""

from __future__ import annotations

import json
import os
import pickle
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from grace.catalog.values import INT64_MAX, INT64_MIN, checked_text, describe, printable
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

    Parquet takes its columns and their types from all rows, which wait in an unnamed file beside
    `path` until the last one has come. It has no empty objects: a column, or a field of one, that
    is `{}` in every row gets a field `_` of nulls. Every row is compared with what is written.

    Raises:
        CatalogError: if the suffix is another, a value cannot be held or the columns' types do not
            fit all rows; naming the row, counted from 1, and the field where there is one.
    """
    path = Path(path)
    if path.suffix not in SUFFIXES:
        raise CatalogError(f"{path}: expected a name ending in {' or '.join(SUFFIXES)}")
    with atomic_write(path) as file:
        if path.suffix == ".jsonl":
            for number, row in enumerate(rows, start=1):
                file.write(_json_line(number, row))
            return
        # The path as `atomic_write` takes it: the spool then lies where there is room for the file.
        with tempfile.TemporaryFile(dir=Path(os.path.realpath(path)).parent) as spool:
            schema = _spool_rows(path, rows, spool)
            spool.seek(0)
            _write_spooled(path, file, spool, schema)


def _json_line(number: int, row: dict) -> bytes:
    try:
        return json.dumps(row, ensure_ascii=False, default=_iso).encode() + b"\n"
    except (ValueError, TypeError, RecursionError) as error:
        if isinstance(error, UnicodeEncodeError):
            _refuse_unwritable(number, row, "")
        raise CatalogError(f"JSON cannot hold this row: {error}", number) from None


def _spool_rows(path: Path, rows: Iterable[dict], spool: BinaryIO) -> pa.Schema:
    """Set rows aside and return a schema with every column and struct key that any row has."""
    schema = None
    first = 1
    for batch in _batches(rows):
        found = _infer_schema(path, first, batch)
        try:
            both = [found] if schema is None else [schema, found]
            schema = pa.unify_schemas(both, promote_options="permissive")
        except pa.ArrowException as error:
            raise CatalogError(f"{path}: rows do not share column types: {error}") from None
        try:
            pickle.dump(batch, spool, pickle.HIGHEST_PROTOCOL)
        except RecursionError:
            last = first + len(batch) - 1
            raise CatalogError(f"{path}: rows {first}-{last} are nested too deeply") from None
        first += len(batch)
    if schema is None:
        raise CatalogError(f"{path}: there are no rows to write")
    if not schema.names:
        raise CatalogError(f"{path}: the rows have no columns")
    return pa.schema([field.with_type(_without_empty_structs(field.type)) for field in schema])


def _infer_schema(path: Path, first: int, batch: list[dict]) -> pa.Schema:
    fields = []
    for name in dict.fromkeys(name for row in batch for name in row):
        try:
            fields.append(pa.field(name, pa.array([row.get(name) for row in batch]).type))
        except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
            for number, row in enumerate(batch, start=first):
                if name in row:
                    _refuse_unwritable(number, {name: row[name]}, "", INT64_MIN, INT64_MAX)
            raise CatalogError(
                f"{path}: rows do not share column types: {error}", field=printable(str(name))
            ) from None
    return pa.schema(fields)


def _without_empty_structs(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_struct(kind):
        fields = [field.with_type(_without_empty_structs(field.type)) for field in kind]
        return pa.struct(fields or [pa.field("_", pa.null())])
    if pa.types.is_list(kind):
        return pa.list_(_without_empty_structs(kind.value_type))
    return kind


def _write_spooled(path: Path, file: BinaryIO, spool: BinaryIO, schema: pa.Schema) -> None:
    end = os.fstat(spool.fileno()).st_size
    first = 1
    try:
        with pq.ParquetWriter(file, schema) as writer:
            while spool.tell() < end:
                batch = pickle.load(spool)
                table = pa.Table.from_pylist(batch, schema=schema)
                both = zip(batch, table.to_pylist(), strict=True)
                for number, (row, written) in enumerate(both, start=first):
                    _refuse_loss(number, row, written, "")
                writer.write_table(table)
                first += len(batch)
    except (pa.ArrowException, ValueError, OverflowError, RecursionError) as error:
        raise CatalogError(f"{path}: rows do not share column types: {error}") from None


def _refuse_loss(number: int, value: object, written: object, field: str) -> None:
    """Refuse a row that Parquet would hold otherwise; only missing keys may become nulls."""
    if hasattr(value, "tolist"):  # numpy's arrays and numbers
        value = value.tolist()
    if isinstance(value, dict) and isinstance(written, dict):
        for key, item in value.items():
            _refuse_loss(number, item, written.get(key), f"{field}.{key}" if field else str(key))
    elif isinstance(value, (list, tuple)) and isinstance(written, list):
        if len(value) != len(written):
            raise CatalogError(f"would come out as {describe(written)}", number, field)
        for position, (item, other) in enumerate(zip(value, written, strict=True)):
            _refuse_loss(number, item, other, f"{field}[{position}]")
    elif value != written and not (value != value and written != written):
        raise CatalogError(
            f"would come out as {describe(written)} instead of {describe(value)}, because other "
            "rows have another type here",
            number,
            field,
        )


def _refuse_unwritable(
    number: int,
    value: object,
    field: str,
    least: float = float("-inf"),
    most: float = float("inf"),
) -> None:
    """Name the text that UTF-8 cannot hold, or the integer out of bounds, if there is one."""
    if isinstance(value, str):
        try:
            checked_text(value)
        except ValueError as error:
            raise CatalogError(str(error), number, field) from None
    elif isinstance(value, int) and not least <= value <= most:
        raise CatalogError(f"expected a 64-bit integer, got {describe(value)}", number, field)
    elif isinstance(value, dict):
        for key, item in value.items():
            name = printable(f"{field}.{key}" if field else str(key))
            _refuse_unwritable(number, key, name)
            _refuse_unwritable(number, item, name, least, most)
    elif isinstance(value, (list, tuple)):
        for position, item in enumerate(value):
            _refuse_unwritable(number, item, f"{field}[{position}]", least, most)


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
