"""Bounds of segments: 32-bit where they fit, 64-bit past that."""

from __future__ import annotations

import numpy as np


def fitted(numbers: np.ndarray, largest: int | None = None) -> np.ndarray:
    """Return ascending numbers, or numbers up to `largest`, as int32 if all are below 2^31."""
    if largest is None:
        largest = int(numbers[-1])
    return numbers.astype(np.int32 if largest < 2**31 else np.int64, copy=False)
