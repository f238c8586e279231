"""Training examples as windows of histories, cut out on the device."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from grace.datasets import Sequences, Split
from grace.errors import ConfigError, DataError


class Batch(NamedTuple):
    """Rows of histories, their items oldest first and padding last.

    Attributes:
        items: `[R, n + 1]` int64, dense item numbers; -1 from `lengths + 1` on, and throughout an
            empty row. The item at `lengths` is what came next (-1 where that is to be predicted).
        lengths: `[R]` int64, items of each history; 0 for an empty row.
        users: `[R]` int64, user ids.
    """

    items: Tensor
    lengths: Tensor
    users: Tensor

    def part(self, rows: slice, room: int) -> Batch:
        """Return some rows, which have at most so many items each; views."""
        return Batch(self.items[rows, : room + 1], self.lengths[rows], self.users[rows])

    @property
    def targets(self) -> Tensor:
        """`[R]` int64, what came next; item 0 in an empty row."""
        return self.items.gather(1, self.lengths[:, None])[:, 0].clamp_min(0)

    def places(self, pieces: Sequence[tuple[int, int]]) -> tuple[list[Tensor], Tensor]:
        """Return the histories of each piece, and what came next at all their places.

        Args:
            pieces: of each, in their order, rows and the most items that one of them has.

        Returns:
            `[R, n]` int64 each, and `[T]` int64, -1 where nothing did.
        """
        starts = itertools.accumulate((rows for rows, _ in pieces), initial=0)
        items = [
            self.items[start : start + rows, : room + 1]
            for (rows, room), start in zip(pieces, starts, strict=False)
        ]
        targets = torch.cat([each[:, 1:].flatten() for each in items])
        return [each[:, :-1] for each in items], targets


Ranker = Callable[[Batch, int], Tensor]
"""`(batch, k) -> [R, k]` int64: the items of each row, best first, -1 where there are no more."""


@dataclasses.dataclass(frozen=True)
class Windows:
    """E windows of items that lie one after the other in one array.

    Attributes:
        items: all users' items.
        first: `[E]` int64, where each window begins in `items`.
        lengths: `[E]` int64, items of each history.
        users: `[E]` int64, user ids.
        followed: whether the item behind a window is known.
    """

    items: np.ndarray
    first: np.ndarray
    lengths: np.ndarray
    users: np.ndarray
    followed: bool = True

    def __len__(self) -> int:
        return len(self.first)

    def take(self, chosen: np.ndarray) -> Windows:
        """Return some of the windows, by number."""
        return dataclasses.replace(
            self, first=self.first[chosen], lengths=self.lengths[chosen], users=self.users[chosen]
        )

    def to(self, device: str) -> DeviceWindows:
        """Copy everything to a device."""
        arrays = (self.items, self.first, self.lengths, self.users)
        return DeviceWindows(
            *(torch.from_numpy(array).to(device) for array in arrays), followed=self.followed
        )


@dataclasses.dataclass(frozen=True)
class DeviceWindows:
    """`Windows` as int64 tensors on one device."""

    items: Tensor
    first: Tensor
    lengths: Tensor
    users: Tensor
    followed: bool

    def batch(self, rows: Tensor, room: int) -> Batch:
        """Cut out windows; shapes follow from the arguments alone.

        Args:
            rows: `[R]` int64, window numbers; -1 for an empty row.
            room: n, at least the length of every window named.
        """
        known = rows.clamp_min(0)
        lengths = torch.where(rows >= 0, self.lengths[known], 0)
        place = torch.arange(room + 1, device=rows.device)
        last = lengths[:, None] if self.followed else lengths[:, None] - 1
        inside = (place <= last) & (rows >= 0)[:, None]
        # Padding reads item 0 and is overwritten.
        items = self.items[torch.where(inside, self.first[known][:, None] + place, 0)]
        return Batch(torch.where(inside, items, -1), lengths, self.users[known])


def cut_windows(data: Sequences, history: int) -> Windows:
    """Return a window for every item but the first of each user: the items before it."""
    ends = np.arange(len(data.items))
    starts = np.repeat(data.offsets[:-1], np.diff(data.offsets))
    kept = ends > starts
    ends, starts = ends[kept], starts[kept]
    first = np.maximum(starts, ends - history)
    users = np.repeat(data.users, np.diff(data.offsets))[kept]
    return Windows(data.items, first, ends - first, users)


def span_windows(data: Sequences, history: int) -> Windows:
    """Return windows in which every item is to be predicted from those before it.

    A user with more items than fit has several; each item but the first is a target once.
    """
    targets = np.maximum(np.diff(data.offsets) - 1, 0)
    counts = -(-targets // history)
    user = np.repeat(np.arange(len(counts)), counts)
    nth = np.arange(len(user)) - np.repeat(np.cumsum(counts) - counts, counts)
    ends = data.offsets[1:][user] - 1 - nth * history
    first = np.maximum(data.offsets[:-1][user], ends - history)
    return Windows(data.items, first, ends - first, data.users[user])


def split_windows(split: Split, history: int | None = None) -> Windows:
    """Return the newest items of each history of a split; what followed is not in it.

    Args:
        split: the users.
        history: items of a window, at most; None for whole histories.

    Raises:
        DataError: if a history is empty.
    """
    ends = split.offsets[1:]
    if (np.diff(split.offsets) < 1).any():
        empty = split.users[np.diff(split.offsets) < 1][0]
        raise DataError(f"{split.name}: user {empty} has no history; nothing can be ranked from it")
    first = (
        split.offsets[:-1] if history is None else np.maximum(split.offsets[:-1], ends - history)
    )
    return Windows(split.items, first, ends - first, split.users, followed=False)


def refuse_repeats(data: Sequences) -> None:
    """Raise where users take items again: then a history says nothing about what cannot come.

    Raises:
        ConfigError: if any history of the training part holds an item twice.
    """
    user = np.repeat(np.arange(len(data.users)), np.diff(data.offsets))
    pairs = np.unique(user * np.int64(data.num_items) + data.items)
    if len(pairs) < len(data.items):
        raise ConfigError(
            f"exclude_history is for data in which nobody takes an item twice; {data.folder} has "
            f"{len(data.items) - len(pairs)} such events in its training part"
        )


def thinned(batch: Batch, share: float) -> Batch:
    """Leave out a share of each history at random, never the newest item; what followed stays."""
    room = batch.items.shape[1] - 1
    place = torch.arange(room + 1, device=batch.items.device)
    old = place < batch.lengths[:, None] - 1
    dropped = old & (torch.rand(batch.items.shape, device=batch.items.device) < share)
    # What stays moves forward in its order; what is dropped becomes padding at the end.
    order = torch.argsort(dropped.long(), dim=1, stable=True)
    items = torch.where(dropped, -1, batch.items).gather(1, order)
    return Batch(items, batch.lengths - dropped.sum(1), batch.users)
