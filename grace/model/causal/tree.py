"""The trie of items' SIDs: what continues a prefix, what a prefix weighs, what it stands for."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from grace.index.trie import build_trie


class SidTree(nn.Module):
    """Prefixes of some items' SIDs. A prefix is named by its number within its level.

    Args:
        sids: int64 `[N, L]`, of each item.

    Attributes:
        num_levels: L.
        prefixes: int64 `[N, L + 1]`, each item's prefix of every length.
        places: int64 `[N, L]`, where each item's next prefix stands among its siblings.
    """

    prefixes: Tensor
    places: Tensor

    def __init__(self, sids: Tensor):
        super().__init__()
        table = sids.cpu().numpy().astype(np.int32)
        order = np.lexsort(table.T[::-1])
        trie, _ = build_trie(table[order])
        self.num_levels = trie.num_levels
        self._first = trie.level_offsets.tolist()
        self._most_children = trie.most_children
        buffers = {
            "order": torch.from_numpy(order),
            "child_offsets": trie.child_offsets.long(),
            "child_codes": trie.child_tokens.long(),
        }
        prefixes = np.zeros((len(table), self.num_levels + 1), np.int64)
        changes = np.zeros(len(table), bool)
        changes[0] = True
        for level in range(self.num_levels):
            # Of a prefix, the items lie side by side in their order by SID.
            changes[1:] |= table[order][1:, level] != table[order][:-1, level]
            prefixes[order, level + 1] = changes.cumsum() - 1
            bounds = np.append(np.flatnonzero(changes), len(table))
            buffers[f"items_{level + 1}"] = torch.from_numpy(bounds)
        nodes = prefixes + np.asarray(self._first[:-1])
        first = trie.child_offsets.numpy()[nodes[:, :-1]]
        buffers["prefixes"] = torch.from_numpy(prefixes)
        buffers["places"] = torch.from_numpy(nodes[:, 1:] - 1 - first)
        for name, buffer in buffers.items():
            self.register_buffer(name, buffer.to(sids.device), persistent=False)

    def continued(self, prefix: Tensor, t: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return what continues prefixes of t codes, by ascending code.

        Args:
            prefix: int64 `[...]`.
            t: their length, below L.

        Returns:
            Three `[..., C]`, C the most children of a prefix of this length: int64 prefixes, int64
            codes, and bool, whether there is one; where there is none, the first two are any.
        """
        node = prefix + self._first[t]
        first = self.child_offsets[node]
        count = self.child_offsets[node + 1] - first
        nth = torch.arange(self._most_children[t], device=prefix.device)
        inside = nth < count[..., None]
        entry = first[..., None] + torch.where(inside, nth, 0)
        return entry + 1 - self._first[t + 1], self.child_codes[entry], inside

    def weights(self, logits: Tensor) -> list[Tensor]:
        """Return per level 0..L float64 `[B, prefixes]`: log-probabilities of prefixes, by items'.

        Args:
            logits: `[B, N]`, of the items; -inf for those without any probability.
        """
        log_probs = logits.double().log_softmax(1)
        probs = log_probs.exp().T[self.order].contiguous()
        weights = [log_probs.new_zeros(len(logits), 1)]
        for level in range(1, self.num_levels + 1):
            weights.append(self._reduce(probs, level, "sum").T.log())
        return weights

    def vectors(self, items: Tensor) -> list[Tensor]:
        """Return per level 0..L `[prefixes, d]`, the mean vector of each prefix's items.

        The root's is zero: it tells nothing.

        Args:
            items: `[N, d]`, the items' vectors.
        """
        by_sid = F.embedding(self.order, items)
        levels = range(1, self.num_levels + 1)
        return [torch.zeros_like(items[:1]), *(self._reduce(by_sid, t, "mean") for t in levels)]

    def _reduce(self, by_sid: Tensor, level: int, how: str) -> Tensor:
        """Return `[prefixes, ...]` of `[N, ...]`, items by SID: the sum or mean of each prefix."""
        bounds = getattr(self, f"items_{level}")
        # Unsafe means unchecked: a check would wait for the device.
        return torch.segment_reduce(by_sid, how, offsets=bounds, axis=0, unsafe=True)
