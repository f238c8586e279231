"""The baseline that knows no user: items by how often the training part holds them."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from grace.train.sequence.windows import Batch, Ranker


class Popularity(nn.Module):
    """Ranks the same items for everybody.

    Args:
        num_items: N.
        items: int64, all training events; None leaves the order to be loaded.
    """

    def __init__(self, num_items: int, items: np.ndarray | None = None):
        super().__init__()
        order = np.arange(num_items)
        if items is not None:
            counts = np.bincount(items, minlength=num_items)
            order = np.argsort(-counts, kind="stable")  # equal counts by item number
        self.register_buffer("order", torch.from_numpy(order))

    def ranker(self, beam_width: int) -> Ranker:
        """Return `(batch, k) -> [R, k]` item numbers, the same for every row; -1 past the last."""
        return self._rank

    def _rank(self, batch: Batch, k: int) -> Tensor:
        first = F.pad(self.order[:k], (0, max(0, k - len(self.order))), value=-1)
        return first.expand(len(batch.lengths), k)
