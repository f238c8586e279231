"""The SIDs of a data set's items: read from a catalogue, checked, and as a trie on a device."""

from __future__ import annotations

import dataclasses
import os

import numpy as np
import torch
from torch import Tensor

from grace.catalog import iter_rows
from grace.errors import CatalogError, SidError
from grace.index.trie import Trie, build_trie
from grace.sid.collapse import (
    MAX_SID_SHARE,
    MIN_AMBIGUITY,
    MIN_ITEMS_TO_JUDGE,
    MIN_LEVEL_RESOLVED,
    MIN_RESOLVED,
)


def read_sids(catalog: str | os.PathLike, item_ids: np.ndarray) -> np.ndarray:
    """Return the SIDs of items, int32 `[N, L]`.

    Args:
        catalog: `.parquet` or `.jsonl` file with `ad_id` and `sid`, of exactly these items.
        item_ids: `[N]` int64, ascending.

    Raises:
        CatalogError: if an item has no SID, none of these items has the id, or SIDs are ragged.
        SidError: if the SIDs do not tell the items apart.
    """
    sids: list[list[int] | None] = [None] * len(item_ids)
    places = {int(item): place for place, item in enumerate(item_ids)}
    levels = None
    for number, row in iter_rows(catalog, ("ad_id", "sid")):
        place, sid = places.get(row.get("ad_id")), row.get("sid")
        if place is None:
            raise CatalogError(f"{catalog}: {row.get('ad_id')!r} is no item of the data", number)
        if sids[place] is not None:
            raise CatalogError(f"{catalog}: item {row['ad_id']} is given twice", number, "ad_id")
        if not isinstance(sid, list) or not sid or any(type(code) is not int for code in sid):
            raise CatalogError(f"{catalog}: expected a list of integers", number, "sid")
        levels = len(sid) if levels is None else levels
        if len(sid) != levels or not 0 <= min(sid) <= max(sid) < 2**31:
            raise CatalogError(
                f"{catalog}: expected {levels} codes from 0 to 2^31 - 1, got {sid}", number, "sid"
            )
        sids[place] = sid
    missing = [item for item, sid in zip(item_ids.tolist(), sids, strict=True) if sid is None]
    if missing:
        raise CatalogError(
            f"{catalog}: {len(missing)} items of the data have no SID, the first is {missing[0]}"
        )
    table = np.asarray(sids, np.int32)
    refuse_degenerate(table)
    return table


def refuse_degenerate(sids: np.ndarray) -> None:
    """Raise if SIDs tell the items apart no better than a collapsed tokenizer's.

    The rules of `grace sid fit`, with every item for a distinct vector: nothing else is known here.

    Args:
        sids: `[N, L]` int32.

    Raises:
        SidError: naming what is degenerate and by how much.
    """
    items = len(sids)
    distinct, counts = np.unique(sids, axis=0, return_counts=True)
    if items > 1 and len(distinct) == 1:
        raise SidError(f"degenerate SIDs: all {items} items share one")
    if items < MIN_ITEMS_TO_JUDGE:
        return
    if counts.max() > MAX_SID_SHARE * items:
        raise SidError(
            f"degenerate SIDs: {counts.max()} of {items} items share {distinct[counts.argmax()]}, "
            f"more than {MAX_SID_SHARE:.0%}"
        )
    told, codes = 0.0, int(sids.max()) + 1
    for level in range(sids.shape[1]):
        _, sharing = np.unique(sids[:, : level + 1], axis=0, return_counts=True)
        before, told = told, _entropy(sharing)
        left = np.log(items) - before
        most = min(np.log(codes), left)
        if left >= np.log(MIN_AMBIGUITY) and told - before < MIN_LEVEL_RESOLVED * most:
            raise SidError(
                f"degenerate SIDs: level {level + 1} tells apart {(told - before) / most:.1%} of "
                f"what it could, under {MIN_LEVEL_RESOLVED:.0%}"
            )
    most = min(sids.shape[1] * np.log(codes), np.log(items))
    if told < MIN_RESOLVED * most:
        raise SidError(
            f"degenerate SIDs: they tell apart {told / most:.1%} of what they could, under "
            f"{MIN_RESOLVED:.0%}"
        )


def _entropy(counts: np.ndarray) -> float:
    share = counts / counts.sum()
    return max(0.0, float(-(share * np.log(share)).sum()))


@dataclasses.dataclass(frozen=True)
class SidTable:
    """Items and their SIDs on a device.

    Attributes:
        sids: `[N, L]` int64, of each item.
        trie: of the distinct SIDs, its children on the device.
        offsets: `[num_sids + 1]` int64, bounds of each SID's items in `items`; SIDs ascend.
        items: `[N]` int64, by SID; within a SID by item number, which is the order in which they
            rank.
    """

    sids: Tensor
    trie: Trie
    offsets: Tensor
    items: Tensor

    @classmethod
    def build(cls, sids: np.ndarray, device: str) -> SidTable:
        """Build the table of `[N, L]` int32 SIDs."""
        order = np.lexsort(sids.T[::-1])  # stable: equal SIDs keep the order of the items
        trie, offsets = build_trie(sids[order])
        return cls(
            torch.from_numpy(sids).long().to(device),
            trie.to(device),
            torch.from_numpy(np.asarray(offsets)).long().to(device),
            torch.from_numpy(order).to(device),
        )

    @property
    def sizes(self) -> tuple[int, ...]:
        """Codes of each level: the largest + 1."""
        return tuple((self.sids.max(0).values + 1).tolist())

    def expand(self, found: Tensor, k: int) -> Tensor:
        """Return the first k items of ranked SIDs.

        Args:
            found: `[R, M]` int64, SIDs by number, best first; -1 for none, at the end.
            k: how many items.

        Returns:
            `[R, k]` int64 item numbers; -1 where there are no more.
        """
        known = found.clamp_min(0)
        counts = torch.where(found >= 0, self.offsets[known + 1] - self.offsets[known], 0)
        after = counts.cumsum(1)
        slot = torch.arange(k, device=found.device).expand(len(found), k).contiguous()
        beam = torch.searchsorted(after, slot, right=True)
        inside = beam < found.shape[1]
        beam = beam.clamp_max(found.shape[1] - 1)
        nth = slot - (after - counts).gather(1, beam)
        place = self.offsets[known.gather(1, beam)] + nth
        return torch.where(inside, self.items[torch.where(inside, place, 0)], -1)
