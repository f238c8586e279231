"""Catalogues that are stored by column, read a few thousand rows at a time."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from grace.errors import CatalogError

BATCH_ROWS = 16_384
BATCH_BYTES = 128 << 20  # where rows are so long that fewer of them make a batch
GROUP_BATCHES = 8  # of a table in memory

_CODES = {"RLE_DICTIONARY", "PLAIN_DICTIONARY"}

NumberedBatch = tuple[int, pa.RecordBatch]


class ParquetBatches:
    """A Parquet file; its row groups may be read by several threads at once.

    Attributes:
        num_groups: row groups.
        num_rows: rows of all groups.
    """

    def __init__(
        self, path: Path, file: pa.NativeFile, columns: Iterable[str] | None, coded: str | None
    ):
        self._path = path
        self._coded = coded
        # One open file for all threads: they read the same one, even if the path is replaced.
        self._file = file
        with pq.ParquetFile(file) as opened:
            self._metadata = opened.metadata
            names = opened.schema_arrow.names
        _refuse_repeated_names(names, str(path))
        # A column's name is the root of its leaves' names; leaves are what Parquet projects.
        self._names = [name for name in names if columns is None or name in set(columns)]
        sizes = [self._metadata.row_group(i).num_rows for i in range(self._metadata.num_row_groups)]
        self._firsts = list(itertools.accumulate(sizes, initial=1))
        self.num_groups = len(sizes)
        self.num_rows = sum(sizes)

    def read(self, group: int) -> Iterator[NumberedBatch]:
        """Yield the batches of one group, each with the number of its first row."""
        first = self._firsts[group]
        with (
            _readable(self._path),
            pq.ParquetFile(
                self._file, metadata=self._metadata, read_dictionary=self._coded_leaves(group)
            ) as opened,
        ):
            batches = opened.iter_batches(
                self._batch_rows(group), row_groups=[group], columns=self._names, use_threads=False
            )
            for batch in batches:
                yield first, batch
                first += batch.num_rows

    def _chunks(self, group: int) -> Iterator[pq.ColumnChunkMetaData]:
        """Yield what the file says of each leaf column that is read."""
        chunks = self._metadata.row_group(group)
        for chunk in map(chunks.column, range(chunks.num_columns)):
            if chunk.path_in_schema.split(".")[0] in self._names:
                yield chunk

    def _batch_rows(self, group: int) -> int:
        size = sum(max(c.total_uncompressed_size, 8 * c.num_values) for c in self._chunks(group))
        num_rows = self._metadata.row_group(group).num_rows
        return max(1, min(BATCH_ROWS, BATCH_BYTES * num_rows // max(size, 1)))

    def _coded_leaves(self, group: int) -> list[str]:
        """Return the texts below `coded` that the group stores as numbers in a dictionary."""
        return [
            chunk.path_in_schema
            for chunk in self._chunks(group)
            if chunk.path_in_schema.split(".")[0] == self._coded
            and chunk.physical_type == "BYTE_ARRAY"
            and _CODES & {*chunk.encodings}
            # Of the encodings that a chunk may go on with, Arrow cannot turn others back.
            and {*chunk.encodings} <= _CODES | {"PLAIN", "RLE", "BIT_PACKED"}
        ]


class TableBatches:
    """A table in memory; see `ParquetBatches`."""

    def __init__(self, table: pa.Table, columns: Iterable[str] | None):
        _refuse_repeated_names(table.column_names, "the table")
        if columns is not None:
            table = table.select([name for name in table.column_names if name in set(columns)])
        self._batches: list[NumberedBatch] = []
        first = 1
        for batch in table.to_batches(BATCH_ROWS):
            self._batches.append((first, batch))
            first += batch.num_rows
        self.num_groups = -(-len(self._batches) // GROUP_BATCHES)
        self.num_rows = table.num_rows

    def read(self, group: int) -> Iterator[NumberedBatch]:
        """Yield the batches of one group, each with the number of its first row."""
        yield from self._batches[group * GROUP_BATCHES : (group + 1) * GROUP_BATCHES]


Batches = ParquetBatches | TableBatches


@contextlib.contextmanager
def open_batches(
    source: object, columns: Iterable[str] | None, coded: str | None = None
) -> Iterator[Batches | None]:
    """Open a source that is stored by column; None for one that has rows.

    Args:
        source: what `grace.catalog.iter_rows` takes.
        columns: read only these; None for all.
        coded: a column whose texts stay numbers in a dictionary where the file has them so.

    Raises:
        CatalogError: if there is no such file, or it is no Parquet though its name says so.
    """
    if isinstance(source, (str, os.PathLike)):
        path = Path(source)
        if not path.is_file():
            raise CatalogError(f"{path}: no such file")
        if path.suffix != ".parquet":
            yield None
            return
        with contextlib.ExitStack() as stack:
            with _readable(path):
                file = stack.enter_context(pa.OSFile(str(path)))
                batches = ParquetBatches(path, file, columns, coded)
            yield batches
    elif hasattr(source, "__arrow_c_stream__"):
        yield TableBatches(pa.table(source), columns)
    else:
        yield None


def whole_microseconds(column: pa.Array) -> pa.Array:
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


@contextlib.contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except (pa.ArrowException, OSError) as error:
        raise CatalogError(f"{path}: cannot be read as Parquet: {error}") from None


def _refuse_repeated_names(names: list[str], where: str) -> None:
    for name in names:
        if names.count(name) > 1:
            raise CatalogError(f"{where}: has two columns called {name!r}")
