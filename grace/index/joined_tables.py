"""The dictionaries of a base and of a delta as one: what only the delta has comes behind."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from grace import _native
from grace.catalog import Catalog, RangeTable, ValueTable
from grace.index.rules import RangeRules, RuleTables, ValueRules


def joined_tables(
    base: RuleTables, ads: Catalog, workers: int
) -> tuple[list[RangeTable | ValueTable], np.ndarray, np.ndarray, np.ndarray]:
    """Append what only the new ads have to the base's dictionaries.

    Returns:
        Rules, windows and signatures of both, and int32 [D], the new ads' signatures among them.
    """
    rules, new_columns = [], []
    for attribute, (old, new) in enumerate(zip(base.rules, ads.rules, strict=True)):
        join = _join_ranges if isinstance(old, RangeRules) else _join_lists
        joined, new_ids = join(old, new, workers)
        rules.append(joined)
        new_columns.append(new_ids[ads.signatures[:, attribute]])
    windows, new_ids = _join_rows(base.windows.numpy(), ads.windows, workers)
    new_columns.append(new_ids[ads.signatures[:, -1]])
    new_rows = np.stack(new_columns, 1)
    signatures, new_ids = _join_rows(base.signatures.numpy(), new_rows, workers)
    return rules, windows, signatures, new_ids[ads.ad_signatures]


def _join_rows(old: np.ndarray, new: np.ndarray, workers: int) -> tuple[np.ndarray, np.ndarray]:
    """Append the rows of `new` that `old` lacks; return all, and where each of `new` now stands."""
    width = old.shape[1] * old.itemsize // 4
    bits = [np.ascontiguousarray(part).view(np.int32).reshape(-1, width) for part in (old, new)]
    found = _native.find_rows(*bits, workers)
    return _appended(old, new, found), _numbered(found, len(old))


def _appended(old: np.ndarray, new: np.ndarray, found: np.ndarray) -> np.ndarray:
    return np.concatenate([old, new[found < 0]])


def _numbered(found: np.ndarray, num_old: int) -> np.ndarray:
    missing = found < 0
    return np.where(missing, num_old + np.cumsum(missing) - 1, found).astype(np.int32)


def _join_ranges(old: RangeRules, new: RangeTable, workers: int) -> tuple[RangeTable, np.ndarray]:
    ends = (np.stack([table_min, table_max], 1) for table_min, table_max in (
        (old.min.numpy(), old.max.numpy()), (new.min, new.max)))  # fmt: skip
    joined, new_ids = _join_rows(*ends, workers)
    return RangeTable(joined[:, 0].copy(), joined[:, 1].copy()), new_ids


def _join_lists(old: ValueRules, new: ValueTable, workers: int) -> tuple[ValueTable, np.ndarray]:
    found = old.values.find(new.values.to_pylist()).astype(np.int32)
    value_ids = _numbered(found, len(old.values))
    values = pa.concat_arrays([old.values.to_arrow(), new.values.filter(pa.array(found < 0))])
    everything = np.arange(len(new), dtype=np.int32)
    wanted = [
        part
        for offsets, ids in (
            (new.include_offsets, new.include_values), (new.exclude_offsets, new.exclude_values)
        )
        for part in _native.take_lists(offsets, ids, everything, value_ids, workers)
    ]  # fmt: skip
    stored = [
        array.numpy()
        for array in (
            old.include_offsets, old.include_values, old.exclude_offsets, old.exclude_values
        )
    ]  # fmt: skip
    if stored[0].dtype != stored[2].dtype:
        stored[0], stored[2] = (offsets.astype(np.int64) for offsets in (stored[0], stored[2]))
    places = _native.find_rules(*stored, *wanted, workers)
    missing = np.flatnonzero(places < 0).astype(np.int32)
    identity = np.arange(len(values), dtype=np.int32)
    sides = []
    for side in (0, 2):
        offsets, ids = _native.take_lists(
            wanted[side], wanted[side + 1], missing, identity, workers
        )
        old_offsets = stored[side].astype(np.int64)
        sides += [
            np.concatenate([old_offsets, old_offsets[-1] + offsets[1:]]),
            np.concatenate([stored[side + 1], ids]),
        ]
    return ValueTable(values, *sides), _numbered(places, len(old.include_offsets) - 1)
