"""The trie of all SIDs in level order, without child ids."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from grace import _native


@dataclass(frozen=True)
class Trie:
    """Prefixes of N distinct SIDs of L tokens.

    Nodes are numbered level by level (the root is 0) and, inside a level, in lexicographic order of
    their prefixes. So the children of a node are neighbours, the entry `e` of `child_tokens` leads
    to node `e + 1`, and the leaf of the i-th SID is `level_offsets[L] + i`.

    Attributes:
        level_offsets: int64 [L + 2], first node of levels 0..L, and the number of nodes S.
        child_offsets: int32 or int64 [S - N + 1], bounds of each inner node's entries.
        child_tokens: int32 [S - 1], the token that leads to node `e + 1`, ascending within a node.
    """

    level_offsets: Tensor
    child_offsets: Tensor
    child_tokens: Tensor

    @property
    def num_levels(self) -> int:
        """L, the number of tokens of a SID."""
        return len(self.level_offsets) - 2

    @property
    def num_nodes(self) -> int:
        """S, prefixes of every length, the empty one included."""
        return int(self.level_offsets[-1])

    @property
    def first_leaf(self) -> int:
        """The node of SID 0."""
        return int(self.level_offsets[-2])

    @cached_property
    def level_sizes(self) -> tuple[int, ...]:
        """Number of prefixes of length 0..L."""
        return tuple(np.diff(self.level_offsets.numpy()).tolist())

    @cached_property
    def most_children(self) -> tuple[int, ...]:
        """Per level 0..L-1 the largest number of children of a node."""
        bounds = self.level_offsets.tolist()[:-1]
        offsets = self.child_offsets.cpu().numpy()
        levels = (np.diff(offsets[first : last + 1]) for first, last in pairwise(bounds))
        return tuple(int(counts.max()) for counts in levels)

    @cached_property
    def vocab_size(self) -> int:
        """The largest token + 1: the least V that a generator must have."""
        return int(self.child_tokens.max()) + 1

    @cached_property
    def sids(self) -> np.ndarray:
        """int32 [N, L], all SIDs, ascending."""
        return self.expand()

    def to(self, device: str | torch.device) -> Trie:
        """Return the trie with its children on a device; `level_offsets` stays on the CPU.

        `sids`, `expand` and `find` are for a trie on the CPU.
        """
        moved = Trie(
            self.level_offsets, self.child_offsets.to(device), self.child_tokens.to(device)
        )
        # From the CPU's copy: the sizes of steps must not have to wait for a device.
        vars(moved)["most_children"] = self.most_children
        return moved

    def expand(self, sid_ad_offsets: np.ndarray | None = None, workers: int = 1) -> np.ndarray:
        """Return int32 [N, L], all SIDs, without keeping them; [A, L], each ad's, with offsets."""
        arrays = (self.level_offsets, self.child_offsets, self.child_tokens)
        return _native.trie_sids(*(array.numpy() for array in arrays), sid_ad_offsets, workers)

    def find(self, sids: np.ndarray) -> np.ndarray:
        """Return int64 [n], the index of each SID of [n, L] ints; -1 where there is none."""
        sids = np.asarray(sids, np.int64).reshape(-1, self.num_levels)
        offsets, tokens = self.child_offsets.numpy(), self.child_tokens.numpy()
        node = np.zeros(len(sids), np.int64)
        for level in range(self.num_levels):
            child = find_children(offsets, tokens, np.maximum(node, 0), sids[:, level])
            node = np.where(node < 0, -1, child)
        return np.where(node < 0, -1, node - self.first_leaf)


def find_children(
    child_offsets: np.ndarray, child_tokens: np.ndarray, nodes: np.ndarray, tokens: np.ndarray
) -> np.ndarray:
    """Return int64 [n], the child of each inner node along a token, or -1; a binary search each."""
    # 64 bits, so that the sum of two offsets fits whatever they are stored in.
    low, high = (child_offsets[n].astype(np.int64) for n in (nodes, nodes + 1))
    last = high
    for _ in range(int((high - low).max(initial=0)).bit_length()):
        middle = (low + high) // 2
        less = (low < high) & (child_tokens[np.minimum(middle, len(child_tokens) - 1)] < tokens)
        low, high = np.where(less, middle + 1, low), np.where(less, high, middle)
    found = (low < last) & (child_tokens[np.minimum(low, len(child_tokens) - 1)] == tokens)
    return np.where(found, low + 1, -1)


def build_trie(
    sids: np.ndarray, order: np.ndarray | None = None, workers: int = 1
) -> tuple[Trie, np.ndarray]:
    """Build the trie of ads' SIDs, of which many may be equal.

    Args:
        sids: int32 [A, L], A and L at least 1.
        order: uint32 [A], the rows of `sids` in the order in which they ascend; None if they do.
        workers: threads; the result does not depend on them.

    Returns:
        The trie, and `sid_ad_offsets`, int32 or int64 [N + 1]: the ads of each SID, in that order.

    Raises:
        ValueError: if the SIDs do not ascend.
    """
    *arrays, sid_ad_offsets = _native.build_trie(np.ascontiguousarray(sids), order, workers)
    return Trie(*map(torch.from_numpy, arrays)), sid_ad_offsets
