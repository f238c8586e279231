"""Large arrays lent out and taken back, because fresh memory costs a page fault per 4 KiB."""

from __future__ import annotations

import weakref
from collections import deque

import numpy as np
import torch
from torch import Tensor


class Buffers:
    """int32 [size] tensors, each of one owner at a time; any number of threads may ask."""

    def __init__(self, size: int):
        self._size = size
        self._free: deque[np.ndarray] = deque()

    def lend(self) -> Tensor:
        """Return a tensor of unspecified content.

        Its memory is lent again once the tensor and all views of it are gone.
        """
        try:
            array = self._free.pop()
        except IndexError:
            array = np.empty(self._size, np.int32)
        # The tensor's storage holds `lent`, and views of the tensor share the storage.
        lent = array.view()
        weakref.finalize(lent, self._free.append, array).atexit = False
        return torch.from_numpy(lent)


class Memos:
    """int64 [size] arrays that remember 32-bit words of one batch, never cleared in between.

    An entry counts only if its high half is the batch's stamp, which no earlier batch of the same
    array had.
    """

    def __init__(self, size: int):
        self._size = size
        self._free: deque[tuple[np.ndarray, int]] = deque()

    def lend(self) -> tuple[np.ndarray, int]:
        """Return an array and a stamp; the array is lent again once its views are gone."""
        try:
            array, last = self._free.pop()
        except IndexError:
            array, last = np.zeros(self._size, np.int64), 0
        if last == 2**32 - 1:
            array[:], last = 0, 0
        lent = array.view()
        weakref.finalize(lent, self._free.append, (array, last + 1)).atexit = False
        return lent, last + 1
