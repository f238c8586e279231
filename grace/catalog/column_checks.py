"""Batches checked column by column: the fast way for plain types without a fault.

What it cannot decide, be it an odd type or a wrong row, it leaves to `RowChecker`, which gives the
same result row by row, or words the error.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from grace.catalog.batches import whole_microseconds
from grace.catalog.dictionary import Dictionary, RangeDictionary, text_buffers
from grace.catalog.parts import Part, Shape
from grace.catalog.row_checks import MAX_LEVELS, MAX_TOKEN
from grace.catalog.rule_columns import (
    Undecided,
    fields_of,
    is_absent,
    is_empty,
    is_text,
    plain_texts,
    range_column,
    value_column,
)
from grace.catalog.tables import ALWAYS
from grace.catalog.values import EPOCH, MICROSECOND, instant

# A zone may carry times beyond the years that a datetime has; a day on either side is left to rows.
_EARLIEST, _LATEST = (
    (moment.replace(tzinfo=UTC) - EPOCH) // MICROSECOND
    for moment in (datetime.min + timedelta(days=2), datetime.max - timedelta(days=2))
)


def check_columns(
    batch: pa.RecordBatch, first: int, dictionary: Dictionary, shape: Shape, *, removals: bool
) -> Part | None:
    """Check a batch of at least one row, by column.

    Args:
        batch: the catalogue's columns, as a file holds them.
        first: the number of its first row.
        dictionary: takes the batch's values, rules, windows and signatures.
        shape: takes what the batch settles; as it was if the result is None.
        removals: whether a `removed` column is heeded.

    Returns:
        The checked rows, or None where rows must be looked at one by one.
    """
    try:
        return _part(batch, first, dictionary, shape, removals)
    except (Undecided, pa.ArrowException):
        return None


def _part(
    batch: pa.RecordBatch, first: int, dictionary: Dictionary, shape: Shape, removals: bool
) -> Part:
    batch.validate(full=True)  # offsets within bounds, text that is UTF-8
    ids = _ids(_column(batch, "ad_id"))
    first_id = ids[0].as_py()
    numbers: range | np.ndarray = range(first, first + batch.num_rows)
    removed_numbers: range | np.ndarray = range(0)
    removed = ids[:0]
    gone = _flags(_column(batch, "removed") if removals else None, batch.num_rows)
    if gone.any():
        numbers, removed_numbers = first + np.flatnonzero(~gone), first + np.flatnonzero(gone)
        kept = pa.array(~gone)
        ids, removed, batch = ids.filter(kept), ids.filter(pa.array(gone)), batch.filter(kept)
    num_ads = batch.num_rows
    sids = _sids(_column(batch, "sid")) if num_ads else np.empty((0, 0), np.int32)
    if shape.id_fault(first, first_id) or (num_ads and shape.sid_fault(first, sids.shape[1])):
        raise Undecided
    windows = _windows(_column(batch, "start"), _column(batch, "end"), num_ads)
    paused = _flags(_column(batch, "paused"), num_ads)
    rules = _rules(_column(batch, "rules"), num_ads, dictionary)
    shape.settle_id(first, first_id)
    if num_ads:
        shape.settle_sid(int(numbers[0]), sids.shape[1])
    signatures = dictionary.sign(rules, windows)
    return Part(numbers, ids, sids, signatures, paused, removed_numbers, removed)


def _column(batch: pa.RecordBatch, name: str) -> pa.Array | None:
    return batch.column(name) if name in batch.schema.names else None


def _ids(column: pa.Array | None) -> pa.Array:
    if column is None or column.null_count:
        raise Undecided
    if types.is_integer(column.type):
        return column.cast(pa.int64())
    texts = plain_texts(column)
    offsets, _ = text_buffers(texts)
    if (offsets[1:] == offsets[:-1]).any():
        raise Undecided
    return texts


def _sids(column: pa.Array | None) -> np.ndarray:
    """Return int32 [n, L] of lists that all have L tokens."""
    if column is None or column.null_count:
        raise Undecided
    if not types.is_integer(getattr(column.type, "value_type", pa.null())):
        raise Undecided
    if types.is_fixed_size_list(column.type):
        num_levels = column.type.list_size
    elif types.is_list(column.type) or types.is_large_list(column.type):
        lengths = np.diff(column.offsets.to_numpy())
        num_levels = int(lengths[0])
        if (lengths != num_levels).any():
            raise Undecided
    else:
        raise Undecided
    tokens = column.flatten()
    if tokens.null_count or not 1 <= num_levels <= MAX_LEVELS:
        raise Undecided
    tokens = tokens.to_numpy()
    if tokens.min() < 0 or tokens.max() > MAX_TOKEN:
        raise Undecided
    return tokens.astype(np.int32).reshape(len(column), num_levels)


def _flags(column: pa.Array | None, num_rows: int) -> np.ndarray:
    """Return bool [n]; absent and null are false."""
    if is_absent(column):
        return np.zeros(num_rows, bool)
    if not types.is_boolean(column.type):
        raise Undecided
    return column.fill_null(False).to_numpy(zero_copy_only=False)


def _windows(start: pa.Array | None, end: pa.Array | None, num_rows: int) -> np.ndarray:
    """Return int64 [n, 2]."""
    windows = np.empty((num_rows, 2), np.int64)
    windows[:] = ALWAYS
    for side, column in enumerate((start, end)):
        if not is_absent(column):
            instants = _instants(column)
            known = instants.is_valid().to_numpy(zero_copy_only=False)
            windows[known, side] = instants.drop_null().to_numpy()
    if (windows[:, 0] > windows[:, 1]).any():
        raise Undecided
    return windows


def _instants(column: pa.Array) -> pa.Array:
    """Return microseconds since 1970-01-01 UTC, int64 with nulls."""
    if types.is_timestamp(column.type) or types.is_date(column.type):
        instants = whole_microseconds(column).cast(pa.int64())
        ends = pc.min_max(instants).as_py()
        if ends["min"] is not None and (ends["min"] < _EARLIEST or ends["max"] > _LATEST):
            raise Undecided
        return instants
    if is_text(column.type):
        column = column.cast(pa.large_string()).dictionary_encode()
    if not types.is_dictionary(column.type) or not is_text(column.type.value_type):
        raise Undecided
    try:
        moments = [instant(text, assume_utc=True) for text in column.dictionary.to_pylist()]
    except ValueError:
        raise Undecided from None
    return pa.array(moments, pa.int64()).take(column.indices)


def _rules(column: pa.Array | None, num_rows: int, dictionary: Dictionary) -> list[np.ndarray]:
    """Return per attribute int32 [n], numbers of the dictionary's rules."""
    parts = fields_of(column)
    names = dictionary.schema.names
    if not all(is_empty(part) for name, part in parts.items() if name not in names):
        raise Undecided
    return [
        (range_column if isinstance(rules, RangeDictionary) else value_column)(
            parts.get(name), num_rows, rules
        )
        for name, rules in zip(names, dictionary.rules, strict=True)
    ]
