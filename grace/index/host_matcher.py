"""Every matching mode on the CPU in the form that a search over static memory asks for."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from grace.index.index import Index
from grace.index.rules import CompiledTargeting
from grace.index.verdict import Verdict


class HostMatcher:
    """A `DeviceMatcher` on the CPU, where nothing has to stay in place.

    Args:
        index: a version.
        matching: a mode, not `off`.
        widths: of the search, as `Index.match` takes them.

    Attributes:
        root, ready, generation: as in `DeviceMatcher`; `root` has as many rows as the batch.
    """

    ready = None
    generation = 0

    def __init__(self, index: Index, matching: str, widths: Sequence[int] | None = None):
        self._index, self._matching, self._widths = index, matching, widths
        self._verdict: Verdict | None = None
        self.root = torch.zeros(0, dtype=torch.bool)

    def start(self, requests: Sequence[CompiledTargeting]) -> Verdict | None:
        """Decide what `Index.match` decides; see `DeviceMatcher`."""
        self._verdict = self._index.match(self._matching, requests, self._widths)
        everyone = torch.ones(len(requests), dtype=torch.bool)
        self.root = everyone if self._verdict is None else self._verdict.root
        return self._verdict

    def masks(self, nodes: Tensor, most_children: int) -> tuple[Tensor | None, Tensor | None]:
        """Return the words, or the children's; see `DeviceMatcher`."""
        return (None, None) if self._verdict is None else self._verdict.masks(nodes)
