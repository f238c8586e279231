"""Bloom filters over UTF-8 values: w bits, h hashes made from one xxh64."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from grace.errors import ConfigError

VALUES_AT_ONCE = 64  # keeps what `contains_any` holds small


@dataclass(frozen=True)
class BloomShape:
    """How values become bits.

    Attributes:
        num_bits: w, a multiple of 64.
        num_hashes: h, positions set per value.
    """

    num_bits: int = 256
    num_hashes: int = 4

    def __post_init__(self):
        if self.num_bits < 64 or self.num_bits % 64:
            raise ConfigError(f"Bloom bits must be a positive multiple of 64, got {self.num_bits}")
        if not 1 <= self.num_hashes <= 64:
            raise ConfigError(f"Bloom hashes must be from 1 to 64, got {self.num_hashes}")

    @property
    def num_words(self) -> int:
        """64-bit words of a filter."""
        return self.num_bits // 64


def bloom_bits(value: str, num_bits: int = 256, num_hashes: int = 4) -> list[int]:
    """Return the positions that a value sets: double hashing with the halves of its xxh64.

    Kirsch and Mitzenmacher (2006) show that `first + i * second` behaves as h independent hashes.
    """
    import xxhash

    digest = xxhash.xxh64_intdigest(value.encode())
    first, second = digest & 0xFFFFFFFF, digest >> 32 | 1
    return [(first + i * second) % num_bits for i in range(num_hashes)]


def bloom_flags(values: Sequence[str], shape: BloomShape) -> np.ndarray:
    """Return bool [n, w], the filter of each single value."""
    flags = np.zeros((len(values), shape.num_bits), bool)
    for row, value in enumerate(values):
        flags[row, bloom_bits(value, shape.num_bits, shape.num_hashes)] = True
    return flags


def bloom_columns(rows: np.ndarray, num_bits: int) -> np.ndarray:
    """Turn stored filters int64 [R, W] on their side: uint8 [w, R / 8], a bit per row."""
    bits = np.unpackbits(rows.view(np.uint8), axis=1, count=num_bits, bitorder="little")
    return np.packbits(bits.T, axis=1, bitorder="little")


def contains_any(columns: np.ndarray, positions: np.ndarray, num_rows: int) -> np.ndarray:
    """Say whether each stored row holds all bits of at least one value (equation 8).

    A value asks for the AND of its h columns, eight rows at a time; so many values and many rows
    cost little more than reading those columns.

    Args:
        columns: uint8 [w, R / 8], of `bloom_columns`.
        positions: int64 [n, h], the bits of each value.
        num_rows: R.

    Returns:
        bool [R]; false where n is 0.
    """
    hit = np.zeros(columns.shape[1], np.uint8)
    for first in range(0, len(positions), VALUES_AT_ONCE):
        part = positions[first : first + VALUES_AT_ONCE]
        held = columns[part[:, 0]]
        for column in part.T[1:]:
            held &= columns[column]
        hit |= np.bitwise_or.reduce(held, axis=0)
    return np.unpackbits(hit, count=num_rows, bitorder="little").astype(bool)
