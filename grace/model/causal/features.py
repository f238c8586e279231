"""What the causal model reads of a request: the items of its history."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from grace.model.history import check_history, history_of

if TYPE_CHECKING:
    from grace.index import Index


class ItemFeatures:
    """Features `{"history": [ad ids, oldest first]}`; a `user` may stand there and is not read.

    Args:
        item_ids: int64 `[N]`, ascending: the items that the model knows.
        max_items: of a history that are read, the newest.
    """

    def __init__(self, item_ids: np.ndarray, max_items: int):
        self._item_ids, self._max_items = item_ids, max_items

    check = staticmethod(check_history)

    def encode(
        self, features: Sequence[Mapping[str, Any]], index: Index
    ) -> tuple[dict[str, Tensor], list[int]]:
        """Turn the features of B requests into the model's inputs.

        Items that the model does not know leave a history before it is cut to `max_items`, whether
        or not the index has them.

        Args:
            features: checked.
            index: not asked: the model knows its items by their ids.

        Returns:
            `history`, int64 `[B, max_items]`, -1 for padding, last; and per request how many items
            were skipped.
        """
        rows = torch.full((len(features), self._max_items), -1)
        unknown = []
        for row, one in zip(rows, features, strict=True):
            history = history_of(one)
            asked = np.array([ad for ad in history if _is_item_id(ad)], np.int64)
            place = np.searchsorted(self._item_ids, asked).clip(max=len(self._item_ids) - 1)
            known = place[self._item_ids[place] == asked]
            newest = torch.from_numpy(known[-self._max_items :])
            row[: len(newest)] = newest
            unknown.append(len(history) - len(known))
        return {"history": rows}, unknown


def _is_item_id(ad: str | int) -> bool:
    return isinstance(ad, int) and -(2**63) <= ad < 2**63
