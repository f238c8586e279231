"""A trie in STATIC's form (Su et al., 2026), built from sorted SIDs by whole-array numpy.

This is the layout that YouTube's STATIC describes: dense tables for the first two tokens and pairs
(token, next state) in CSR form for the rest. Written anew from the paper's description, as the
alternative that `benchmarks.build` and `benchmarks.select` compare with.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class StaticTrie:
    """Transitions of a trie whose states are numbered level by level.

    States 1..V are the first tokens, then come the distinct prefixes of 2 to L - 1 tokens; 0 ends.

    Attributes:
        transitions: int32 [E + V, 2], (token, next state), rows of a state side by side; V rows of
            padding follow, so that a gather of V rows from any state stays inside.
        offsets: int32 [states + 2], the transitions of each state.
        first_mask: bool [V], tokens that begin a SID.
        pair_mask: bool [V, V], pairs of tokens that begin a SID.
        pair_states: int32 [V, V], the state after each pair.
    """

    transitions: np.ndarray
    offsets: np.ndarray
    first_mask: np.ndarray
    pair_mask: np.ndarray
    pair_states: np.ndarray

    @property
    def num_bytes(self) -> int:
        """Memory of all arrays."""
        return sum(array.nbytes for array in vars(self).values())


def build_static_trie(sids: np.ndarray, vocab_size: int) -> StaticTrie:
    """Build the arrays from sorted SIDs, int32 [N, L] with L at least 3."""
    num_sids, num_levels = sids.shape
    changed = sids[1:] != sids[:-1]
    begins = np.ones((num_sids, num_levels), bool)  # the row is the first with its prefix
    np.logical_or.accumulate(changed, axis=1, out=begins[1:])
    states = np.zeros((num_sids, num_levels - 1), np.int32)
    states[:, 0] = sids[:, 0] + 1
    next_state = vocab_size + 1
    for level in range(1, num_levels - 1):
        states[:, level] = next_state - 1 + np.cumsum(begins[:, level], dtype=np.int32)
        next_state = int(states[-1, level]) + 1
    parents, tokens, children = [], [], []
    for level in range(1, num_levels):
        new = begins[:, level]
        parents.append(states[new, level - 1])
        tokens.append(sids[new, level])
        last = level == num_levels - 1
        children.append(np.zeros(len(parents[-1]), np.int32) if last else states[new, level])
    offsets = np.zeros(next_state + 2, np.int32)
    np.cumsum(np.bincount(np.concatenate(parents), minlength=next_state), out=offsets[1:-1])
    offsets[-1] = offsets[-2] + vocab_size
    padding = np.array([[vocab_size, 0]], np.int32).repeat(vocab_size, 0)
    pairs = np.stack([np.concatenate(tokens), np.concatenate(children)], 1)
    pair_mask = np.zeros((vocab_size, vocab_size), bool)
    pair_states = np.zeros((vocab_size, vocab_size), np.int32)
    pair_mask[sids[:, 0], sids[:, 1]] = True
    pair_states[sids[:, 0], sids[:, 1]] = states[:, 1]
    first_mask = np.zeros(vocab_size, bool)
    first_mask[sids[:, 0]] = True
    return StaticTrie(np.concatenate([pairs, padding]), offsets, first_mask, pair_mask, pair_states)
