"""Rows to a Parquet or JSON Lines file, whole or not at all."""

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

from grace.catalog.batches import BATCH_ROWS
from grace.catalog.rows import SUFFIXES
from grace.catalog.values import INT64_MAX, INT64_MIN, checked_text, describe, printable
from grace.errors import CatalogError
from grace.files import atomic_write


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
