"""Random numbers that depend on (seed, stream, number) alone, so that any ad can be made alone."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np


class Stream:
    """An endless row of random numbers that can be read anywhere: splitmix64 of the position."""

    def __init__(self, seed: int, name: str):
        digest = hashlib.blake2b(f"{seed}/{name}".encode(), digest_size=8).digest()
        self.key = np.uint64(int.from_bytes(digest, "little"))

    def bits(self, numbers: np.ndarray) -> np.ndarray:
        """uint64, of the shape of `numbers` (integers not below 0)."""
        return mix(numbers, self.key)

    def uniform(self, numbers: np.ndarray) -> np.ndarray:
        """float64 in [0, 1), of the shape of `numbers`."""
        return (self.bits(numbers) >> np.uint64(11)) * 2.0**-53

    def choose(self, cumulative: np.ndarray, numbers: np.ndarray) -> np.ndarray:
        """int64 positions in a distribution made by `cumulate`."""
        return np.searchsorted(cumulative, self.uniform(numbers), side="right")

    def below(self, bounds: np.ndarray | int, numbers: np.ndarray) -> np.ndarray:
        """int64, uniform over 0 to bound - 1."""
        return (self.uniform(numbers) * bounds).astype(np.int64)


def mix(numbers: np.ndarray, key: int | np.uint64 = 0) -> np.ndarray:
    """uint64 hashes of integers: the finaliser of splitmix64."""
    z = numbers.astype(np.uint64)
    z *= np.uint64(0x9E3779B97F4A7C15)
    z += np.uint64(key)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        z ^= z >> np.uint64(shift)
        z *= np.uint64(factor)
    z ^= z >> np.uint64(31)
    return z


def distinct(values: np.ndarray) -> np.ndarray:
    """Ascending, without repeats; sorts, where `np.unique` hashes and takes many times as long."""
    values = np.sort(values)
    first = np.ones(len(values), bool)
    first[1:] = values[1:] != values[:-1]
    return values[first]


def cumulate(weights: Sequence[float]) -> np.ndarray:
    """float64, running sums scaled to 1; the last entry is left out, so that 1 is never passed.

    Rounded to 32 bits: the last digits of sums and logarithms differ between machines.
    """
    sums = np.cumsum(np.asarray(weights, np.float64))
    return np.round(sums[:-1] / sums[-1] * 2**32) / 2**32


def elements(counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return for lists of these sizes the list and the position in it of each element, int64."""
    lists = np.repeat(np.arange(len(counts)), counts)
    starts = np.cumsum(counts) - counts
    return lists, np.arange(len(lists)) - starts[lists]
