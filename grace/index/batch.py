"""A batch of compiled requests as arrays: what the exact matcher's kernels read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from grace.index.rules import CompiledTargeting
from grace.kernels.words import MAX_REQUESTS, everyone


@dataclass(frozen=True)
class Batch:
    """B requests, at most 32; bit b of a word is request b's.

    Attributes:
        everyone: word of all requests.
        known: int32 [num_attributes], the requests whose value is known.
        numbers: float64 [num_attributes, B], NaN unless the attribute is a known range.
        at: int64 [B], microseconds since 1970-01-01 UTC.
        carried: per attribute (values int32 [n], distinct; words int32 [n], who carries each).
    """

    everyone: int
    known: np.ndarray
    numbers: np.ndarray
    at: np.ndarray
    carried: tuple[tuple[np.ndarray, np.ndarray], ...]

    @property
    def num_requests(self) -> int:
        """B."""
        return len(self.at)

    @staticmethod
    def of(requests: Sequence[CompiledTargeting], num_attributes: int) -> Batch:
        """Lay requests out by attribute.

        Raises:
            ValueError: if there are more than 32.
        """
        if len(requests) > MAX_REQUESTS:
            raise ValueError(f"a word holds {MAX_REQUESTS} requests, got {len(requests)}")
        bits = np.uint32(1) << np.arange(len(requests), dtype=np.uint32)
        shape = len(requests), num_attributes
        known = np.array([request.known for request in requests]).reshape(shape) != 0
        numbers = np.array([request.numbers for request in requests]).reshape(shape)
        return Batch(
            everyone=everyone(len(requests)),
            known=(known.T * bits).sum(1, dtype=np.uint32).view(np.int32),
            numbers=np.ascontiguousarray(numbers.T, np.float64),
            at=np.array([request.targeting.at for request in requests], np.int64),
            carried=tuple(
                _who_carries([request.value_ids[a] for request in requests], bits)
                for a in range(num_attributes)
            ),
        )


def _who_carries(ids: list[np.ndarray], bits: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    flat = np.concatenate([np.empty(0, np.int32), *ids])
    if len(flat) == 0:
        return flat, flat
    order = np.argsort(flat, kind="stable")
    flat, words = flat[order], np.repeat(bits, list(map(len, ids)))[order]
    first = np.flatnonzero(np.r_[True, flat[1:] != flat[:-1]])
    return flat[first], np.bitwise_or.reduceat(words, first).view(np.int32)
