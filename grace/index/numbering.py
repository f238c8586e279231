"""The index's own numbers for rules, values, windows and signatures.

They follow from the ads alone, whatever the order in which a reader met them: signatures are
numbered as the ads, in index order, first show them; rules and windows as the signatures do; values
by their UTF-8 bytes. What no ad uses any more is left out. So neighbouring ads read neighbouring
signatures, and signatures neighbouring rules, which is what the exact matcher's gathers want.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch

from grace import _native
from grace.catalog import RangeTable, Schema, ValueTable
from grace.index.lookup import TextTable
from grace.index.offsets import fitted
from grace.index.rules import RangeRules, RuleTables, ValueRules


def number_tables(
    schema: Schema,
    rules: Sequence[RangeTable | ValueTable],
    windows: np.ndarray,
    signatures: np.ndarray,
    ad_signatures: np.ndarray,
    order: np.ndarray | None,
    workers: int,
) -> tuple[RuleTables, np.ndarray]:
    """Renumber dictionaries in any order.

    Args:
        schema: the attributes.
        rules: per attribute its distinct rules, rule 0 is "no rule".
        windows: int64 [W, 2], window 0 is always.
        signatures: int32 [G, num_attributes + 1], distinct.
        ad_signatures: int32 [A].
        order: uint32 [A], the rows of `ad_signatures` in index order; None if they are.
        workers: threads; the result does not depend on them.

    Returns:
        The tables, and int32 [A], each ad's signature in index order.
    """
    ad_signatures, kept = _native.first_seen(ad_signatures, order, len(signatures), False)
    signatures = signatures[kept]
    numbered = np.empty_like(signatures)
    tables = []
    for attribute, table in enumerate(rules):
        numbered[:, attribute], kept = _first_seen(signatures[:, attribute], len(table))
        taken = _take_ranges if isinstance(table, RangeTable) else _take_lists
        tables.append(taken(table, kept, workers))
    numbered[:, -1], kept = _first_seen(signatures[:, -1], len(windows))
    return RuleTables(
        schema=schema,
        rules=tuple(tables),
        windows=torch.from_numpy(windows[kept]),
        signatures=torch.from_numpy(numbered),
    ), ad_signatures


def _first_seen(column: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    return _native.first_seen(np.ascontiguousarray(column), None, count, True)


def _take_ranges(table: RangeTable, kept: np.ndarray, workers: int) -> RangeRules:
    return RangeRules(torch.from_numpy(table.min[kept]), torch.from_numpy(table.max[kept]))


def _take_lists(table: ValueTable, kept: np.ndarray, workers: int) -> ValueRules:
    by_bytes = pc.sort_indices(table.values).to_numpy()
    rank = np.empty(len(by_bytes), np.int32)
    rank[by_bytes] = np.arange(len(by_bytes), dtype=np.int32)
    sides = [
        _native.take_lists(offsets, values, kept, rank, workers)
        for offsets, values in (
            (table.include_offsets, table.include_values),
            (table.exclude_offsets, table.exclude_values),
        )
    ]
    used = np.zeros(len(rank), bool)
    for _, values in sides:
        used[values] = True
    if not used.all():
        closer = np.cumsum(used, dtype=np.int32) - np.int32(1)  # ascending: lists stay in order
        sides = [(offsets, closer[values]) for offsets, values in sides]
    texts = table.values.take(pa.array(by_bytes[used]))
    arrays = [a for offsets, values in sides for a in (fitted(offsets), values)]
    return ValueRules(TextTable.build(texts, workers), *map(torch.from_numpy, arrays))
