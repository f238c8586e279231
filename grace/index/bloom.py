"""Bloom filters over UTF-8 values: w bits, h hashes made from one xxh64."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from grace.errors import ConfigError


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


def bloom_words(values: Sequence[str], shape: BloomShape) -> np.ndarray:
    """Return int64 [n, w / 64], the filter of each single value."""
    import xxhash

    digests = np.array([xxhash.xxh64_intdigest(value.encode()) for value in values], np.uint64)
    first, second = digests & np.uint64(0xFFFFFFFF), digests >> np.uint64(32) | np.uint64(1)
    hashes = np.arange(shape.num_hashes, dtype=np.uint64)
    positions = (first[:, None] + hashes * second[:, None]) % np.uint64(shape.num_bits)
    words, rows = np.zeros((len(values), shape.num_words), np.uint64), np.arange(len(values))
    for position in positions.T:  # of one hash: a row once
        words[rows, position.astype(np.int64) // 64] |= np.uint64(1) << position % np.uint64(64)
    return words.view(np.int64)
