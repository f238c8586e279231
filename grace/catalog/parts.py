"""Checked rows in columns, a few thousand at a time, and what all of a file's rows must share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from grace._native import hash_texts
from grace.catalog.dictionary import text_buffers
from grace.catalog.values import describe
from grace.errors import CatalogError

NAMES = {str: "a string", int: "an integer"}
ARROW_TYPES = {str: pa.large_string(), int: pa.int64()}


@dataclass
class Shape:
    """What the first row settles for all others; None while no row has.

    Attributes:
        id_kind: str or int.
        first_id: that id.
        id_row: the number of its row.
        num_levels: L.
        sid_row: the number of the first row with a SID.
    """

    id_kind: type | None = None
    first_id: str | int | None = None
    id_row: int = 0
    num_levels: int | None = None
    sid_row: int = 0

    def settle_id(self, number: int, first: str | int) -> None:
        """Take the kind of a row's id, unless an earlier row settled it."""
        if self.id_kind is None:
            self.id_kind, self.first_id, self.id_row = type(first), first, number

    def settle_sid(self, number: int, num_levels: int) -> None:
        """Take the length of a row's SID, unless an earlier row settled it."""
        if self.num_levels is None:
            self.num_levels, self.sid_row = num_levels, number

    def id_fault(self, number: int, ad_id: object) -> CatalogError | None:
        """Return the error of an id of another kind."""
        if self.id_kind in (None, type(ad_id)):
            return None
        expected = f"expected {NAMES[self.id_kind]} as in the rows before"
        return CatalogError(f"{expected}, got {describe(ad_id)}", number, "ad_id")

    def sid_fault(self, number: int, num_levels: int) -> CatalogError | None:
        """Return the error of a SID of another length."""
        if self.num_levels in (None, num_levels):
            return None
        expected = f"expected {self.num_levels} tokens as in the rows before"
        return CatalogError(f"{expected}, got {num_levels}", number, "sid")

    def follow(self, later: Shape) -> CatalogError | None:
        """Take what rows that come later settled, or return the error of the first that differs."""
        faults = []
        if later.id_kind is not None:
            faults.append(self.id_fault(later.id_row, later.first_id))
            self.settle_id(later.id_row, later.first_id)
        if later.num_levels is not None:
            faults.append(self.sid_fault(later.sid_row, later.num_levels))
            self.settle_sid(later.sid_row, later.num_levels)
        return min(filter(None, faults), key=lambda fault: fault.row, default=None)


@dataclass(frozen=True)
class Part:
    """Some rows: n ads, and ids of ads to remove where a delta has them.

    Attributes:
        numbers: the ads' row numbers, ascending.
        ad_ids: int64 or large_string [n].
        sids: int32 [n, L]; [0, 0] without ads.
        signatures: int32 [n], of the dictionary that the rows were read with.
        paused: bool [n].
        removed_numbers, removed: row numbers and ids.
    """

    numbers: Sequence[int]
    ad_ids: pa.Array
    sids: np.ndarray
    signatures: np.ndarray
    paused: np.ndarray
    removed_numbers: Sequence[int]
    removed: pa.Array


def refuse_duplicates(ids: pa.Array, numbers: Sequence[Sequence[int]]) -> None:
    """Refuse ids that two rows have.

    Args:
        ids: int64 or large_string [n].
        numbers: the rows' numbers, in pieces that make n.

    Raises:
        CatalogError: naming the least such id and its first two rows.
    """
    if pa.types.is_integer(ids.type):
        keys = ids.to_numpy()
    else:
        offsets, text = text_buffers(ids)
        keys = hash_texts(text, offsets, 1)
    ascending = np.sort(keys)
    again = np.unique(ascending[1:][ascending[1:] == ascending[:-1]])
    if not len(again):
        return
    # Ids that share a hash need not be equal, but equal ids do share one.
    suspects = np.flatnonzero(np.isin(keys, again))
    texts = ids.take(pa.array(suspects))
    order = pc.sort_indices(texts).to_numpy()
    ordered = texts.take(pa.array(order))
    same = pc.equal(ordered[1:], ordered[:-1]).to_numpy(zero_copy_only=False)
    if same.any():
        position = int(np.argmax(same))
        rows = sorted(_number(numbers, int(suspects[order[position + i]])) for i in (0, 1))
        raise CatalogError(
            f"{ordered[position].as_py()!r} is in row {rows[0]} already; ids must be unique",
            rows[1],
            "ad_id",
        )


def _number(pieces: Sequence[Sequence[int]], position: int) -> int:
    for piece in pieces:
        if position < len(piece):
            return int(piece[position])
        position -= len(piece)
    raise AssertionError("more ids than row numbers")
