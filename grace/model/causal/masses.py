"""A distribution over items as one over the prefixes of their SIDs."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from grace.index.trie import build_trie


class PrefixMasses(nn.Module):
    """The trie of some items' SIDs, and how probable each prefix is.

    Args:
        sids: int64 `[N, L]`, of each item.

    Attributes:
        order: int64 `[N]`, the items by SID.
    """

    order: Tensor
    child_offsets: Tensor
    child_tokens: Tensor

    def __init__(self, sids: Tensor):
        super().__init__()
        table = sids.cpu().numpy().astype(np.int32)
        order = np.lexsort(table.T[::-1])
        trie, _ = build_trie(table[order])
        self._first = trie.level_offsets.tolist()
        self._most_children = trie.most_children
        buffers = {
            "order": torch.from_numpy(order),
            "child_offsets": trie.child_offsets.long(),
            "child_tokens": trie.child_tokens.long(),
        }
        # Of a prefix, the items lie side by side in their order by SID.
        changes = np.zeros(len(table), bool)
        changes[0] = True
        for level in range(table.shape[1]):
            changes[1:] |= table[order][1:, level] != table[order][:-1, level]
            bounds = np.append(np.flatnonzero(changes), len(table))
            buffers[f"items_{level + 1}"] = torch.from_numpy(bounds)
        for name, buffer in buffers.items():
            self.register_buffer(name, buffer.to(sids.device), persistent=False)

    def forward(self, logits: Tensor) -> list[Tensor]:
        """Return per level 0..L float64 `[B, prefixes]`, the log-probability of every prefix.

        Args:
            logits: `[B, N]`, of the items; -inf for those without any probability.
        """
        log_probs = logits.double().log_softmax(1)
        probs = log_probs.exp().T[self.order].contiguous()
        masses = [log_probs.new_zeros(len(logits), 1)]
        for level in range(1, len(self._first) - 1):
            bounds = getattr(self, f"items_{level}")
            sums = torch.segment_reduce(probs, "sum", offsets=bounds, axis=0, unsafe=True)
            masses.append(sums.T.log())
        return masses

    def step(
        self, masses: list[Tensor], prefix: Tensor, t: int, columns: int
    ) -> tuple[Tensor, Tensor]:
        """Return the log-probabilities of the codes that continue prefixes, and where they lead.

        Args:
            masses: of `forward`.
            prefix: int64 `[B, M]`, numbers of prefixes of t codes, in their level.
            t: the level of the codes.
            columns: V.

        Returns:
            float64 `[B, M, V]`, -inf for codes that lead nowhere, and int64 `[B, M, V]`, numbers of
            prefixes in their level, -1 for none.
        """
        node = prefix + self._first[t]
        first = self.child_offsets[node]
        count = self.child_offsets[node + 1] - first
        nth = torch.arange(self._most_children[t], device=prefix.device)
        inside = nth < count[..., None]
        entry = torch.where(inside, first[..., None] + nth, 0)
        child = torch.where(inside, entry + 1 - self._first[t + 1], 0)
        before = masses[t].gather(1, prefix)[..., None]
        after = masses[t + 1].gather(1, child.flatten(1)).view_as(child)
        gained = torch.where(after > -torch.inf, after - before, -torch.inf)
        # What is no child goes to one more column, which is cut off.
        column = torch.where(inside, self.child_tokens[entry], columns)
        shape = (*prefix.shape, columns + 1)
        scores = gained.new_full(shape, -torch.inf).scatter(2, column, gained)
        leads = child.new_full(shape, -1).scatter(2, column, child)
        return scores[..., :columns], leads[..., :columns]
