"""Tables that find the number of an id or a value, mapped from a file without being read first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from grace import _native
from grace.catalog import dictionary
from grace.index.offsets import fitted


@dataclass(frozen=True)
class TextTable:
    """N distinct texts by number, and back through their hashes.

    Attributes:
        text: uint8, the texts' UTF-8 bytes, one after the other.
        offsets: int64 [N + 1], bounds into `text`.
        hashes: int64 [N], xxh64 of each text, ascending.
        numbers: int32 or int64 [N], the number of the text that has each hash; equal hashes are in
            the order of their texts' numbers.
    """

    text: Tensor
    offsets: Tensor
    hashes: Tensor
    numbers: Tensor

    @staticmethod
    def build(texts: pa.Array, workers: int = 1) -> TextTable:
        """Return the table of distinct texts, a large_string array, numbered in the order given."""
        text, offsets = text_buffers(texts)
        hashes = _native.hash_texts(text, offsets, workers)
        numbers = _native.argsort(hashes, workers)
        return TextTable(
            text=torch.from_numpy(text),
            offsets=torch.from_numpy(offsets),
            hashes=torch.from_numpy(hashes[numbers]),
            numbers=torch.from_numpy(fitted(numbers, len(numbers))),
        )

    @cached_property
    def arrays(self) -> tuple[np.ndarray, np.ndarray]:
        """The texts by number as native code reads them: `text` and `offsets`."""
        return self.text.numpy(), self.offsets.numpy()

    @property
    def finding(self) -> tuple[np.ndarray, ...]:
        """What native code finds numbers by: `hashes`, `numbers`, `text` and `offsets`."""
        return self.hashes.numpy(), self.numbers.numpy(), *self.arrays

    def to_arrow(self) -> pa.Array:
        """Return the texts by number, a large_string array that shares this table's memory."""
        buffers = [None, pa.py_buffer(self.offsets.numpy()), pa.py_buffer(self.text.numpy())]
        return pa.Array.from_buffers(pa.large_string(), len(self), buffers)

    def __len__(self) -> int:
        return len(self.hashes)

    def __getitem__(self, number: int) -> str:
        return self.take(np.array([number]))[0]

    def take(self, numbers: np.ndarray) -> list[str]:
        """Return the texts with the given numbers, int64 [n]."""
        text, offsets = self.arrays
        bounds = zip(offsets[numbers].tolist(), offsets[numbers + 1].tolist(), strict=True)
        return [text[first:last].tobytes().decode() for first, last in bounds]

    def find(self, texts: Sequence[object]) -> np.ndarray:
        """Return int64 [n], the number of each text, or -1; what is no text is never found."""
        return _native.find_texts(*self._searched, list(texts))

    @cached_property
    def _searched(self) -> tuple[np.ndarray, ...]:
        return (*self.arrays, self.hashes.numpy(), self.numbers.numpy())


@dataclass(frozen=True)
class IntegerTable:
    """N distinct 64-bit integers by number, and back.

    Attributes:
        values: int64 [N], by number.
        numbers: int32 or int64 [N], the numbers in the order of their values.
    """

    values: Tensor
    numbers: Tensor

    @staticmethod
    def build(values: np.ndarray, workers: int = 1) -> IntegerTable:
        """Return the table of distinct int64 [N], numbered in the order given."""
        values = np.array(values, np.int64)  # Arrow lends memory that may not be written
        numbers = fitted(_native.argsort(values, workers), len(values))
        return IntegerTable(torch.from_numpy(values), torch.from_numpy(numbers))

    @cached_property
    def arrays(self) -> tuple[np.ndarray]:
        """The integers by number as native code reads them: `values`."""
        return (self.values.numpy(),)

    @property
    def finding(self) -> tuple[np.ndarray, np.ndarray]:
        """What native code finds numbers by: `values` and `numbers`."""
        return self.values.numpy(), self.numbers.numpy()

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, number: int) -> int:
        return int(self.values[number])

    def take(self, numbers: np.ndarray) -> list[int]:
        """Return the integers with the given numbers, int64 [n]."""
        return self.values.numpy()[numbers].tolist()

    def rank(self, wanted: np.ndarray) -> np.ndarray:
        """Return int64 [n], how many of the table's values are less than each of int64 [n]."""
        values, numbers = self.values.numpy(), self.numbers.numpy()
        low = np.zeros(len(wanted), np.int64)
        high = np.full(len(wanted), len(self), np.int64)
        for _ in range(len(self).bit_length()):
            middle = (low + high) // 2
            less = low < high
            less &= values[numbers[np.minimum(middle, len(self) - 1)]] < wanted
            low, high = np.where(less, middle + 1, low), np.where(less, high, middle)
        return low

    def find(self, values: Sequence[object]) -> np.ndarray:
        """Return int64 [n], the number of each integer, or -1; what is no int64 is never found."""
        return _native.find_integers(*self._searched, list(values), np.integer)

    @cached_property
    def _searched(self) -> tuple[np.ndarray, ...]:
        return (*self.arrays, self.numbers.numpy())


def text_buffers(texts: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    """Return uint8 UTF-8 bytes and int64 [N + 1] offsets of a large_string array without nulls."""
    bounds, text = dictionary.text_buffers(texts)
    # Copies: torch wants memory that may be written, and a slice begins at its own first byte.
    return text[bounds[0] : bounds[-1]].copy(), bounds - bounds[0]
