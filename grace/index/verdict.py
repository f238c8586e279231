"""What a matcher says about one batch: the form in which decoding reads it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Verdict:
    """Which prefixes each of B requests, at most 32, may enter.

    A matcher either decides every node before decoding (`words`) or the children of the nodes that
    a step visits (`children`); it gives exactly one of the two, or neither if it asks nothing of
    requests.

    Attributes:
        root: bool [B], whether a request may enter the root; one that may not is dead at once.
        words: int32 [S], bit b of word n is clear if request b must not enter trie node n.
        children: takes the beams' nodes, int64 [B, M] with -1 for a dead beam, and returns
            int32 [B, M, ceil(C / 32)], C the largest number of children among them: bit j % 32 of
            word j // 32 is clear if the beam must not enter its node's j-th child.
        how: what decided, in words for people.
    """

    root: Tensor
    words: Tensor | None
    children: Callable[[Tensor], Tensor] | None
    how: str

    def masks(self, nodes: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """Return `words` and `allowed` of `constrained_select`, one of them None.

        Args:
            nodes: int64 [B, M], the beams' nodes; -1 for a dead beam.
        """
        return self.words, None if self.children is None else self.children(nodes)
