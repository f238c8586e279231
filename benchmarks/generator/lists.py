"""Lists of value ids, end to end."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from benchmarks.generator.draw import distinct, mix


@dataclass(frozen=True)
class Lists:
    """n lists of distinct ids, ascending within a list.

    Attributes:
        offsets: int64 [n + 1].
        values: int32 [offsets[n]].
    """

    offsets: np.ndarray
    values: np.ndarray

    @staticmethod
    def collect(num_lists: int, lists: np.ndarray, values: np.ndarray) -> Lists:
        """Sort (list, value) pairs into lists and drop repeats."""
        keys = distinct(lists.astype(np.int64) << 32 | values)
        counts = np.bincount(keys >> 32, minlength=num_lists)
        return Lists(np.concatenate([[0], np.cumsum(counts)]), (keys & 0xFFFFFFFF).astype(np.int32))

    @property
    def sizes(self) -> np.ndarray:
        """int64 [n]."""
        return np.diff(self.offsets)

    @property
    def owners(self) -> np.ndarray:
        """int64, the list of each value."""
        return np.repeat(np.arange(len(self.offsets) - 1), self.sizes)

    def keys(self) -> np.ndarray:
        """int64, (list, value) of each value in one number, ascending."""
        return self.owners << 32 | self.values

    def without(self, other: Lists) -> Lists:
        """The lists less the values of the other's lists at the same place."""
        if not len(self.values) or not len(other.values):
            return self
        keys, removed = self.keys(), other.keys()
        found = np.minimum(np.searchsorted(removed, keys), len(removed) - 1)
        kept = removed[found] != keys
        return Lists.collect(len(self.offsets) - 1, self.owners[kept], self.values[kept])

    def only(self, kept: np.ndarray) -> Lists:
        """The lists where `kept` (bool [n]) is true, empty ones elsewhere."""
        sizes = np.where(kept, self.sizes, 0)
        return Lists(np.concatenate([[0], np.cumsum(sizes)]), self.values[kept[self.owners]])

    def with_last(self, value: int) -> Lists:
        """The lists with a value above all others added to those that are not empty."""
        filled = self.sizes > 0
        values = np.insert(self.values, self.offsets[1:][filled], value)
        return Lists(self.offsets + np.concatenate([[0], np.cumsum(filled)]), values)

    def hashes(self) -> np.ndarray:
        """uint64 [n], of the values; 0 for an empty list."""
        sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum(mix(self.values + 1))])
        return sums[self.offsets[1:]] - sums[self.offsets[:-1]]

    def to_arrow(self, names: pa.Array) -> pa.ListArray:
        """list<string> [n] of `names`; null for an empty list."""
        offsets = pa.array(self.offsets.astype(np.int32))
        return pa.ListArray.from_arrays(
            offsets, names.take(pa.array(self.values)), mask=pa.array(self.sizes == 0)
        )
