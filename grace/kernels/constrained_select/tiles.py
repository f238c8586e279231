"""How one selection is cut into pieces on a GPU, and the memory that it needs there."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

LONGEST_GROUP = 256  # children of a group, so that no group makes the second reading long
SCORE_TILE = 1024  # candidates that one program scores at once
GATHER_TILE = 512
ALIGNMENT = 256  # bytes


@dataclass(frozen=True)
class Tiles:
    """Sizes that follow from the shapes alone, never from the data: a CUDA graph may hold them.

    A beam's children are dealt to `groups` groups, in turns. A program scores `columns` children of
    `rows` beams at once; `splits` programs share a beam, each with `groups // splits` groups.

    Attributes:
        beams, width, max_children: M, the beams to keep, the largest number of children of a node.
        groups: groups of a beam, a power of two.
        splits, rows, columns: tile of the first reading, powers of two.
        gather_rows, gather_columns: groups of one program of the second reading, and their
            children that it reads at once.
    """

    beams: int
    width: int
    max_children: int
    groups: int
    splits: int
    rows: int
    columns: int
    gather_rows: int
    gather_columns: int

    @property
    def slots(self) -> int:
        """Groups of all beams of a request."""
        return self.beams * self.groups

    @property
    def chosen_groups(self) -> int:
        """The most groups that are read twice: a few more than `width` end the search early."""
        return self.width + self.width // 8 + 32

    @property
    def group_children(self) -> int:
        """The most children of a group."""
        rounds = -(-self.max_children // (self.splits * self.columns))
        return rounds * (self.columns * self.splits // self.groups)

    @property
    def kept(self) -> int:
        """The most candidates that the second reading can keep."""
        return min(self.chosen_groups * self.group_children, self.beams * self.max_children)

    @property
    def ranked(self) -> int:
        """The most candidates that are compared with each other; more are thinned out before."""
        return self.width + self.width // 2 + 64

    def sizes(self, batch: int) -> dict[str, tuple[torch.dtype, tuple[int, ...]]]:
        """Dtype and shape of each buffer."""
        kept = self.kept + self.ranked  # the thinned-out list stands behind the other
        return {
            "maxima": (torch.int64, (batch, self.slots)),
            "kept": (torch.int64, (batch, kept)),
            "cuts": (torch.int64, (batch,)),
            "kept_beams": (torch.int32, (batch, kept)),
            "chosen": (torch.int32, (batch, self.chosen_groups)),
            "counts": (torch.int32, (batch, 3)),
        }


def choose_tiles(beams: int, width: int, max_children: int) -> Tiles:
    """Return the tiles of one step; the more groups, the fewer candidates are read twice."""
    columns = min(max(_power(max_children), 16), 128)
    enough = max(_power(-(-4 * width // beams)), _power(-(-max_children // LONGEST_GROUP)))
    groups = min(enough, _power(max_children))
    rounds = _power(-(-max_children // columns))
    splits = max(groups // columns, min(max(rounds // 16, 1), groups))
    group_columns = columns * splits // groups
    gather_columns = min(max(_power(-(-max_children // groups)), group_columns, 4), 32)
    return Tiles(
        beams=beams,
        width=width,
        max_children=max_children,
        groups=groups,
        splits=splits,
        rows=min(_power(beams), SCORE_TILE // columns),
        columns=columns,
        gather_rows=GATHER_TILE // gather_columns,
        gather_columns=gather_columns,
    )


class Workspace:
    """Memory for selections on one device; steps that follow each other in a stream may share it.

    What it holds between calls means nothing. Two streams need two.
    """

    def __init__(self, num_bytes: int, device: torch.device | str):
        self._bytes = torch.empty(num_bytes, dtype=torch.uint8, device=device)

    @classmethod
    def for_steps(
        cls, batch: int, steps: Iterable[tuple[int, int, int]], device: torch.device | str
    ) -> Workspace:
        """Memory for any of the steps (beams, width, max_children) with up to B requests."""
        return cls(max(num_bytes(choose_tiles(*step), batch) for step in steps), device)

    @property
    def num_bytes(self) -> int:
        """Its size."""
        return len(self._bytes)

    def poison(self, byte: int = 255) -> None:
        """Fill it, for tests: 255 makes NaN of floats and -1 of integers."""
        self._bytes.fill_(byte)

    def buffers(self, tiles: Tiles, batch: int) -> dict[str, Tensor]:
        """The buffers of one call, views of this memory.

        Raises:
            ValueError: if it is too small.
        """
        needed = num_bytes(tiles, batch)
        if needed > self.num_bytes:
            raise ValueError(
                f"workspace must have {needed} bytes for {batch} requests, {tiles.beams} beams, "
                f"width {tiles.width} and {tiles.max_children} children, got {self.num_bytes}"
            )
        views, start = {}, 0
        for name, (dtype, shape) in tiles.sizes(batch).items():
            end = start + dtype.itemsize * math.prod(shape)
            views[name] = self._bytes[start:end].view(dtype).view(shape)
            start += _aligned_bytes(dtype, shape)
        return views


def num_bytes(tiles: Tiles, batch: int) -> int:
    """Memory that one call needs."""
    return sum(_aligned_bytes(dtype, shape) for dtype, shape in tiles.sizes(batch).values())


def _aligned_bytes(dtype: torch.dtype, shape: tuple[int, ...]) -> int:
    # Triton compiles anew for pointers that are aligned otherwise.
    return -(-dtype.itemsize * math.prod(shape) // ALIGNMENT) * ALIGNMENT


def _power(n: int) -> int:
    """The least power of two that is at least n."""
    return 1 << max(n - 1, 0).bit_length()
