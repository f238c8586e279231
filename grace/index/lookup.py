"""Tables that find the number of an id or a value, mapped from a file without being read first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class TextTable:
    """N distinct texts by number, and back through their hashes.

    Attributes:
        text: uint8, the texts' UTF-8 bytes, one after the other.
        offsets: int64 [N + 1], bounds into `text`.
        hashes: int64 [N], xxh64 of each text, ascending.
        numbers: int64 [N], the number of the text that has each hash.
    """

    text: Tensor
    offsets: Tensor
    hashes: Tensor
    numbers: Tensor

    @staticmethod
    def build(texts: Sequence[str]) -> TextTable:
        """Return the table of distinct texts, numbered in the order given."""
        encoded = [text.encode() for text in texts]
        hashes = np.array([_hash(text) for text in encoded], np.int64)
        numbers = np.argsort(hashes, kind="stable").astype(np.int64)
        lengths = np.fromiter(map(len, encoded), np.int64, len(encoded))
        return TextTable(
            text=torch.from_numpy(np.frombuffer(b"".join(encoded), np.uint8).copy()),
            offsets=torch.from_numpy(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)),
            hashes=torch.from_numpy(hashes[numbers]),
            numbers=torch.from_numpy(numbers),
        )

    def __len__(self) -> int:
        return len(self.hashes)

    def __getitem__(self, number: int) -> str:
        return self.take(np.array([number]))[0]

    def take(self, numbers: np.ndarray) -> list[str]:
        """Return the texts with the given numbers, int64 [n]."""
        text, offsets = self.text.numpy(), self.offsets.numpy()
        bounds = zip(offsets[numbers].tolist(), offsets[numbers + 1].tolist(), strict=True)
        return [text[first:last].tobytes().decode() for first, last in bounds]

    def find(self, texts: Sequence[object]) -> np.ndarray:
        """Return int64 [n], the number of each text, or -1; what is no text is never found."""
        # What UTF-8 cannot hold is in no table; "surrogatepass" makes bytes that match nothing.
        known = [
            (i, text.encode("utf-8", "surrogatepass"))
            for i, text in enumerate(texts)
            if isinstance(text, str)
        ]
        found = np.full(len(texts), -1, np.int64)
        hashes = np.array([_hash(text) for _, text in known], np.int64)
        ascending, numbers = self.hashes.numpy(), self.numbers.numpy()
        stored, offsets = self.text.numpy(), self.offsets.numpy()
        first = np.searchsorted(ascending, hashes)
        last = np.searchsorted(ascending, hashes, side="right")
        for k in np.flatnonzero(first < last).tolist():
            i, text = known[k]
            # Two texts may share a hash: their entries are neighbours.
            for number in numbers[first[k] : last[k]].tolist():
                if stored[offsets[number] : offsets[number + 1]].tobytes() == text:
                    found[i] = number
        return found


@dataclass(frozen=True)
class IntegerTable:
    """N distinct 64-bit integers by number, and back.

    Attributes:
        values: int64 [N], by number.
        ascending: int64 [N], sorted.
        numbers: int64 [N], the number of each entry of `ascending`.
    """

    values: Tensor
    ascending: Tensor
    numbers: Tensor

    @staticmethod
    def build(values: np.ndarray) -> IntegerTable:
        """Return the table of distinct int64 [N], numbered in the order given."""
        values = np.array(values, np.int64)  # Arrow lends memory that may not be written
        numbers = np.argsort(values, kind="stable").astype(np.int64)
        return IntegerTable(*map(torch.from_numpy, (values, values[numbers], numbers)))

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, number: int) -> int:
        return int(self.values[number])

    def take(self, numbers: np.ndarray) -> list[int]:
        """Return the integers with the given numbers, int64 [n]."""
        return self.values.numpy()[numbers].tolist()

    def find(self, values: Sequence[object]) -> np.ndarray:
        """Return int64 [n], the number of each integer, or -1; what is no int64 is never found."""
        known = [
            i
            for i, value in enumerate(values)
            if isinstance(value, (int, np.integer))
            and not isinstance(value, bool)
            and -(2**63) <= value < 2**63
        ]
        wanted = np.array([values[i] for i in known], np.int64)
        position = np.minimum(np.searchsorted(self.ascending.numpy(), wanted), len(self) - 1)
        found = np.full(len(values), -1, np.int64)
        if len(self):
            hit = self.ascending.numpy()[position] == wanted
            found[known] = np.where(hit, self.numbers.numpy()[position], -1)
        return found


def _hash(text: bytes) -> int:
    import xxhash

    # Torch has no uint64 to speak of: the same 64 bits, read as a signed number.
    digest = xxhash.xxh64_intdigest(text)
    return digest - 2**64 if digest >= 2**63 else digest
