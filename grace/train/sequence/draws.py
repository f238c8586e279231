"""Which examples each step takes: all of them once an epoch, in shapes that never change."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor


def choose_rooms(lengths: np.ndarray, buckets: int) -> tuple[int, ...]:
    """Return the lengths to pad to, ascending, that waste least.

    Args:
        lengths: `[E]` int64, at least 1 each.
        buckets: how many at most; fewer where there are fewer distinct lengths.
    """
    counts = np.bincount(lengths)
    sizes = np.flatnonzero(counts)
    upto = np.concatenate([[0], np.cumsum(counts[sizes])])
    # cost[j]: padded items of the j shortest lengths in as many buckets as rounds so far.
    cost = np.concatenate([[0.0], np.full(len(sizes), np.inf)])
    choices = []
    for _ in range(min(buckets, len(sizes))):
        with_one = cost[:, None] + (upto[None, 1:] - upto[:, None]) * sizes[None, :]
        with_one[np.arange(len(cost))[:, None] > np.arange(len(sizes))[None, :]] = np.inf
        choices.append(np.concatenate([[0], with_one.argmin(0)]))
        cost = np.concatenate([[np.inf], with_one.min(0)])
    rooms, last = [], len(sizes)
    for choice in reversed(choices):
        rooms.append(int(sizes[last - 1]))
        last = choice[last]
    return tuple(reversed(rooms))


class Draws:
    """The examples of every step of every epoch.

    An epoch has as many steps as batches are needed. Each bucket's examples are shuffled and dealt
    out to the epoch's steps as evenly as whole numbers allow; where a step gets one fewer, an empty
    row fills its place. Everything follows from the seed and the epoch's number.

    Args:
        lengths: `[E]` int64, of each example.
        buckets: lengths to pad to, at most so many, and no more than a step has examples: else a
            step could be without any.
        batch_size: examples of a step in each process.
        micro_batch_size: rows of a piece, at most.
        seed: of the order.
        process: this process's number, of `num_processes`; they share each step's examples.

    Attributes:
        steps_per_epoch: steps.
        pieces: per piece of a step its (bucket, first column, last column, room).
    """

    def __init__(
        self,
        lengths: np.ndarray,
        buckets: int,
        batch_size: int,
        micro_batch_size: int,
        seed: int,
        process: int = 0,
        num_processes: int = 1,
    ):
        self._seed, self._process, self._num_processes = seed, process, num_processes
        step_size = batch_size * num_processes
        self.steps_per_epoch = -(-len(lengths) // step_size)
        rooms = choose_rooms(lengths, min(buckets, step_size))
        bucket = np.searchsorted(rooms, lengths)
        self._members = [np.flatnonzero(bucket == b) for b in range(len(rooms))]
        self.pieces = []
        for b, room in enumerate(rooms):
            rows = -(-self._rows(b) // num_processes)
            for first in range(0, rows, micro_batch_size):
                self.pieces.append((b, first, min(first + micro_batch_size, rows), room))

    def _rows(self, bucket: int) -> int:
        return -(-len(self._members[bucket]) // self.steps_per_epoch)

    def epoch(self, number: int) -> list[Tensor]:
        """Return, per bucket, int64 `[steps, rows]`: the examples of this process, -1 for none."""
        drawn = []
        steps = np.arange(self.steps_per_epoch)
        for b, members in enumerate(self._members):
            shuffled = np.random.default_rng([self._seed, number, b]).permutation(members)
            first = steps * len(members) // self.steps_per_epoch
            last = (steps + 1) * len(members) // self.steps_per_epoch
            width = -(-self._rows(b) // self._num_processes) * self._num_processes
            place = first[:, None] + np.arange(width)
            rows = np.where(
                place < last[:, None], shuffled[np.minimum(place, len(members) - 1)], -1
            )
            drawn.append(torch.from_numpy(rows[:, self._process :: self._num_processes].copy()))
        return drawn
