"""What `bench_select` compares with: selection in torch, over a dense mask and as STATIC does it.

Written for static shapes and without waits for the device, so that a CUDA graph can hold them.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from benchmarks.static_trie import build_static_trie

NEVER = float("-inf")


class Variant(Protocol):
    """A way to search a trie; its states are trie nodes.

    Attributes:
        names_leaves: whether this holds for the last level too.
    """

    names_leaves: bool

    def step(
        self, t: int, log_probs: Tensor, scores: Tensor, state: Tensor, width: int
    ) -> tuple[Tensor, Tensor]:
        """Extend beams, [B, M], by log_probs, [B, M, V]: (scores, state), each [B, width]."""

    def search(self, logits: list[Tensor], widths: tuple[int, ...]) -> tuple[Tensor, Tensor]:
        """All steps from the root: (state, scores), each [B, K]."""


def search(variant: Variant, logits: list[Tensor], widths: tuple[int, ...]) -> tuple[Tensor, ...]:
    """Run all steps with log-softmax in float32."""
    batch = logits[0].shape[0]
    state = torch.zeros(batch, 1, dtype=torch.int64, device=logits[0].device)
    scores = torch.zeros(batch, 1, device=logits[0].device)
    for t, width in enumerate(widths[1:]):
        log_probs = torch.log_softmax(logits[t], -1)
        scores, state = variant.step(t, log_probs, scores, state, width)
    return state, scores


class DenseMask:
    """A mask over all tokens of all beams, then `torch.topk`."""

    names_leaves = True

    def __init__(self, child_offsets: Tensor, child_tokens: Tensor, most: tuple[int, ...]):
        self._offsets, self._tokens, self._most = child_offsets, child_tokens, most

    def step(
        self, t: int, log_probs: Tensor, scores: Tensor, state: Tensor, width: int
    ) -> tuple[Tensor, Tensor]:
        first = self._offsets[state].long()
        count = self._offsets[state + 1].long() - first
        place = torch.arange(self._most[t], device=state.device)
        entry = first[..., None] + place
        inside = place < count[..., None]
        vocab = log_probs.shape[-1]
        token = self._tokens[entry.clamp_max(len(self._tokens) - 1)].long()
        # Places past the last child go to an extra column, which is cut off again.
        token = token.where(inside, vocab)
        shape = (*state.shape, vocab + 1)
        child = torch.full(shape, -1, dtype=torch.int32, device=state.device)
        child = child.scatter_(2, token, (entry + 1).int())[..., :vocab]
        total = (scores[..., None] + log_probs).masked_fill(child < 0, NEVER)
        best, chosen = torch.topk(total.flatten(1), width)
        return best, child.flatten(1).gather(1, chosen).long()

    def search(self, logits: list[Tensor], widths: tuple[int, ...]) -> tuple[Tensor, ...]:
        return search(self, logits, widths)


class Static:
    """STATIC's decoding; see `benchmarks.static_trie` for the arrays.

    Its states are trie nodes if every token begins a SID: it numbers level by level, too.
    """

    names_leaves = False

    def __init__(self, arrays: dict[str, Tensor], vocab_size: int, most: tuple[int, ...]):
        self._arrays, self._vocab_size, self._most = arrays, vocab_size, most

    @classmethod
    def build(cls, sids: np.ndarray, vocab_size: int, most: tuple[int, ...], device: str) -> Static:
        """From sorted SIDs, int32 [N, L], and the largest node of each level."""
        trie = build_static_trie(sids, vocab_size)
        assert trie.first_mask.all(), "more SIDs, or fewer tokens, are needed"
        arrays = {name: torch.from_numpy(array).to(device) for name, array in vars(trie).items()}
        return cls(arrays, vocab_size, most)

    def step(
        self, t: int, log_probs: Tensor, scores: Tensor, state: Tensor, width: int
    ) -> tuple[Tensor, Tensor]:
        allowed, _, following = self.extend(t, log_probs, state)
        total = scores[..., None] + allowed
        best, chosen = torch.topk(total.flatten(1), width)
        return best, following.flatten(1).gather(1, chosen).long()

    def extend(self, t: int, log_probs: Tensor, state: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """What may follow each beam: (log-probability or -inf, token, state), each [B, M, C]."""
        if t >= 2:
            return self._transitions(log_probs, state, self._most[t])
        tokens = torch.arange(self._vocab_size, device=state.device).expand(log_probs.shape)
        if t == 0:
            allowed = log_probs.masked_fill(~self._arrays["first_mask"], NEVER)
            return allowed, tokens, tokens + 1
        first_token = state - 1
        allowed = log_probs.masked_fill(~self._arrays["pair_mask"][first_token], NEVER)
        return allowed, tokens, self._arrays["pair_states"][first_token]

    def _transitions(
        self, log_probs: Tensor, state: Tensor, most: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The first `most` transitions from each state."""
        offsets = self._arrays["offsets"]
        first = offsets[state]
        count = offsets[state + 1] - first
        place = torch.arange(most, device=state.device)
        pairs = self._arrays["transitions"][first[..., None] + place]
        token = pairs[..., 0].long().clamp_max(self._vocab_size - 1)
        reached = log_probs.gather(2, token)
        return reached.masked_fill(place >= count[..., None], NEVER), token, pairs[..., 1]

    def search(self, logits: list[Tensor], widths: tuple[int, ...]) -> tuple[Tensor, ...]:
        return search(self, logits, widths)
