"""The children of visited nodes, decided from the ads below them and nothing else."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from grace.kernels.words import MAX_REQUESTS


class Visits:
    """Decides children on demand, for one batch after another; on the CPU, in native code.

    Args:
        level_offsets: int64 [L + 2], first node of each level, then the number of nodes.
        child_offsets: int32 or int64 [inner nodes + 1]; entry e leads to node e + 1.
        sid_ad_offsets: int32 or int64 [N + 1], bounds of each leaf's ads.
        ad_signatures: int32 [A].
        ad_state: uint8 [A], 0 where an ad is live; read at every call.
        signatures: int32 [G, attributes + 1], a rule of each attribute, then a window.
        windows: int64 [W, 2], half open; 0 is always.
        rules: per attribute (min, max), float64 [R] each, or (include_offsets, include_values,
            exclude_offsets, exclude_values) as `value_words` takes them; rule 0 asks nothing.
    """

    def __init__(
        self,
        level_offsets: Tensor,
        child_offsets: Tensor,
        sid_ad_offsets: Tensor,
        ad_signatures: Tensor,
        ad_state: Tensor,
        signatures: Tensor,
        windows: Tensor,
        rules: Sequence[tuple[Tensor, ...]],
    ):
        from grace import _native

        arrays = (
            level_offsets, child_offsets, sid_ad_offsets, ad_signatures, ad_state, signatures,
            windows,
        )  # fmt: skip
        self._catalogue = _native.VisitedCatalogue(
            *(array.numpy() for array in arrays),
            [tuple(array.numpy() for array in table) for table in rules],
        )

    def begin(
        self,
        everyone: int,
        known: np.ndarray,
        numbers: np.ndarray,
        at: np.ndarray,
        carried: Sequence[np.ndarray],
        memo: np.ndarray,
        stamp: int,
        budget: int = 2**62,
    ) -> BatchVisits:
        """Start a batch of B requests.

        Args:
            everyone: word of all requests.
            known: int32 [attributes], the requests whose value is known.
            numbers: float64 [attributes, B], NaN where a request has none.
            at: int64 [B].
            carried: per attribute int32 [V], who carries each value; anything for a range.
            memo: int64 [G], this batch's alone; no entry's high half may hold `stamp`.
            stamp: from 1 to 2^32 - 1.
            budget: how many ads the batch may look at.
        """
        from grace import _native

        word = everyone & 0xFFFFFFFF
        return BatchVisits(
            _native.Visited(
                self._catalogue, word, known, numbers, at, list(carried), memo, stamp, budget
            )
        )


class BatchVisits:
    """One batch of `Visits`."""

    def __init__(self, native: object):
        self._native = native

    def count(self, ads: np.ndarray) -> tuple[np.ndarray, int]:
        """Look at some ads, int64 [n].

        Returns:
            int64 [32], how many of them are live and accept each request, and how many are live.
        """
        counts = self._native.count(ads)
        return counts[:MAX_REQUESTS], int(counts[MAX_REQUESTS])

    def children(self, nodes: Tensor, workers: int | None = None) -> Tensor | None:
        """Say which children of the beams' nodes have an ad below that accepts the request.

        Args:
            nodes: int64 [B, M], inner nodes; -1 for a dead beam.
            workers: threads; by default as many as torch uses.

        Returns:
            int32 [B, M, ceil(C / 32)], C the most children of any of the nodes; bit j % 32 of word
            j // 32 is the j-th child's. None once the budget is spent.
        """
        found = self._native.children(
            nodes.contiguous().numpy(), workers or torch.get_num_threads()
        )
        if found is None:
            return None
        return torch.from_numpy(found).reshape(*nodes.shape, found.shape[1])
