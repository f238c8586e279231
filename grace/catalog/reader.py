"""Catalogues and deltas read into columns by threads; the first wrong row stops them."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from queue import SimpleQueue

import numpy as np
import pyarrow as pa

from grace.catalog.batches import BATCH_ROWS, Batches, open_batches
from grace.catalog.column_checks import check_columns
from grace.catalog.dictionary import Dictionary
from grace.catalog.parts import ARROW_TYPES, Part, Shape, refuse_duplicates
from grace.catalog.row_checks import RowChecker
from grace.catalog.rows import batch_rows, iter_rows
from grace.catalog.schema import Schema
from grace.catalog.tables import Catalog, Changes
from grace.errors import CatalogError
from grace.progress import progress

MAX_WORKERS = 1024  # each holds tables of its own
COLUMNS = ("ad_id", "sid", "rules", "start", "end", "paused")


def read_catalog(source: object, schema: Schema, workers: int = 1) -> Catalog:
    """Read and check a catalogue whose ads have SIDs; memory holds the result, never the file.

    Args:
        source: what `iter_rows` takes.
        schema: the attributes that rules may name.
        workers: threads that share the row groups of a Parquet file, or the batches of a table.

    Raises:
        CatalogError: naming the row, the field, what was expected and what came.
    """
    changes = _read(source, schema, workers, removals=False)
    if not len(changes.ads.ad_ids):
        raise CatalogError("the catalogue has no rows; an index needs at least one ad")
    return changes.ads


def read_changes(source: object, schema: Schema, workers: int = 1) -> Changes:
    """Read and check a delta: a catalogue whose optional column `removed` marks ads to remove.

    Of a row with `removed` true only `ad_id` is read. There may be no rows at all; ids are then
    int64.

    Raises:
        CatalogError: as `read_catalog`; also if an id comes twice.
    """
    return _read(source, schema, workers, removals=True)


class _Reader:
    """One thread's dictionary, which outlives the groups of rows that it reads."""

    def __init__(self, schema: Schema, *, removals: bool):
        self.dictionary = Dictionary(schema)
        self.removals = removals
        self._rows = RowChecker(self.dictionary, removals=removals)

    def read_batch(self, first: int, batch: pa.RecordBatch, shape: Shape) -> Part:
        part = check_columns(batch, first, self.dictionary, shape, removals=self.removals)
        if part is not None:
            return part
        (part,) = self.read_rows(batch_rows(batch, first), shape, batch.num_rows)
        return part

    def read_rows(
        self, rows: Iterator[tuple[int, dict]], shape: Shape, rows_per_part: int = BATCH_ROWS
    ) -> Iterator[Part]:
        self._rows.start(shape)
        for number, row in rows:
            self._rows.add(number, row)
            if len(self._rows) == rows_per_part:
                yield self._rows.take()
        if len(self._rows):
            yield self._rows.take()


@dataclass
class _Group:
    """What came of one group of rows, as far as the first error."""

    reader: _Reader
    shape: Shape = field(default_factory=Shape)
    parts: list[Part] = field(default_factory=list)
    error: CatalogError | None = None


def _read(source: object, schema: Schema, workers: int, *, removals: bool) -> Changes:
    if workers < 1:
        raise ValueError(f"workers must be at least 1, got {workers}")
    workers = min(workers, MAX_WORKERS)
    columns = (*COLUMNS, "removed") if removals else COLUMNS
    shape = Shape()
    groups = []
    with (
        open_batches(source, columns, coded="rules") as batches,
        progress("reading the catalogue", batches and batches.num_rows) as advance,
    ):
        readers = [_Reader(schema, removals=removals) for _ in range(workers)]
        found = (
            _read_rows(source, columns, readers[0], advance)
            if batches is None
            else _read_groups(batches, readers, advance)
        )
        with contextlib.closing(found):  # threads end before the file is closed
            for group in found:
                fault = shape.follow(group.shape)
                error = group.error
                # The first wrong row speaks, whichever thread came upon it first.
                if fault and (error is None or error.row is None or fault.row <= error.row):
                    raise fault
                if error:
                    raise error
                groups.append(group)
    return _assemble(groups, schema, shape)


def _read_rows(
    source: object, columns: Sequence[str], reader: _Reader, advance: Callable[[int], None]
) -> Iterator[_Group]:
    """Yield one group of all rows."""
    group = _Group(reader)
    for part in reader.read_rows(iter_rows(source, columns), group.shape):
        group.parts.append(part)
        advance(len(part.numbers) + len(part.removed_numbers))
    yield group


def _read_groups(
    batches: Batches, readers: Sequence[_Reader], advance: Callable[[int], None]
) -> Iterator[_Group]:
    """Yield the groups in order, while threads work ahead."""
    idle: SimpleQueue[_Reader] = SimpleQueue()
    for reader in readers:
        idle.put(reader)
    stop = threading.Event()

    def read(number: int) -> _Group:
        group = _Group(idle.get())
        try:
            for first, batch in batches.read(number):
                if stop.is_set():
                    break
                if batch.num_rows:
                    group.parts.append(group.reader.read_batch(first, batch, group.shape))
                    advance(batch.num_rows)
        except CatalogError as error:
            group.error = error
        finally:
            idle.put(group.reader)
        return group

    with ThreadPoolExecutor(len(readers), thread_name_prefix="catalogue") as pool:
        try:
            for future in [pool.submit(read, number) for number in range(batches.num_groups)]:
                yield future.result()
        finally:
            stop.set()
            pool.shutdown(cancel_futures=True)


def _assemble(groups: list[_Group], schema: Schema, shape: Shape) -> Changes:
    """Bring all readers' numbers into one dictionary and all parts into whole columns."""
    parts = [part for group in groups for part in group.parts]
    dictionary, signatures = _merge(groups, schema)
    numbers = [part.numbers for part in parts] + [part.removed_numbers for part in parts]
    none = pa.array([], ARROW_TYPES[shape.id_kind or int])
    ad_ids = pa.concat_arrays([none, *(part.ad_ids for part in parts)])
    removed = pa.concat_arrays([none, *(part.removed for part in parts)])
    sids = [part.sids for part in parts if len(part.sids)]
    paused = [part.paused for part in parts]
    # Pieces go as soon as their column is whole, so that only one column is there twice.
    groups.clear()
    parts.clear()
    refuse_duplicates(pa.concat_arrays([ad_ids, removed]) if len(removed) else ad_ids, numbers)
    ads = Catalog(
        schema=schema,
        ad_ids=ad_ids,
        sids=_joined(sids, (0, 0), np.int32),
        rules=tuple(rules.table() for rules in dictionary.rules),
        windows=dictionary.windows(),
        signatures=dictionary.signatures(),
        ad_signatures=_joined(signatures, 0, np.int32),
        paused=_joined(paused, 0, np.bool_),
    )
    return Changes(ads, removed)


def _merge(groups: list[_Group], schema: Schema) -> tuple[Dictionary, list[np.ndarray]]:
    """Return one dictionary of all readers' and, part by part, the ads' signatures in it."""
    readers = list(dict.fromkeys(group.reader for group in groups))
    dictionary = readers[0].dictionary if readers else Dictionary(schema)
    renumbered = {reader: dictionary.merge(reader.dictionary) for reader in readers[1:]}
    signatures = []
    for group in groups:
        ids = renumbered.get(group.reader)
        for part in group.parts:
            signatures.append(part.signatures if ids is None else ids[part.signatures])
    return dictionary, signatures


def _joined(pieces: list[np.ndarray], empty: int | tuple[int, ...], dtype: type) -> np.ndarray:
    """Concatenate pieces and let go of them."""
    whole = np.concatenate(pieces) if pieces else np.empty(empty, dtype)
    pieces.clear()
    return whole
