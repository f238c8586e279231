"""Beam search over a catalogue's SIDs in plain torch, for hundreds of users at once.

The search of `grace.decode` answers requests: it counts a funnel, matches attributes and is made
for batches of a server. Ranking a whole validation split needs none of that. The answer is the same
(tests/train/test_sequence_rank.py).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from grace.index.trie import Trie
from grace.train.sequence.sids import SidTable

Step = Callable[[Tensor | None, Tensor | None, int], tuple[Tensor, Tensor]]


def search_sids(step: Step, trie: Trie, requests: int, width: int) -> Tensor:
    """Return the best SIDs of each request, by the sum of log-probabilities of their codes.

    Args:
        step: `(parents, codes, t) -> (logits [R, M, V], normaliser [R, M])`, a generator's.
        trie: its children on the device of the logits.
        requests: R.
        width: beams to keep; no more than there are prefixes.

    Returns:
        `[R, K]` int64, SIDs by number, best first, equal scores by SID, none twice; K is the width,
        or the number of SIDs if that is less. -1 for none, at the end.
    """
    offsets, tokens = trie.child_offsets, trie.child_tokens
    nodes = torch.zeros(requests, 1, dtype=torch.int64, device=tokens.device)
    scores = torch.zeros(requests, 1, dtype=torch.float64, device=tokens.device)
    parents = codes = None
    for t in range(trie.num_levels):
        logits, normaliser = step(parents, codes, t)
        first = offsets[nodes].long()
        count = offsets[nodes + 1].long() - first
        child = torch.arange(trie.most_children[t], device=tokens.device)
        entry = torch.where(child < count[..., None], first[..., None] + child, first[..., None])
        code = tokens[entry].long()
        gained = logits.gather(2, code).double() - normaliser[..., None]
        dead = child >= count[..., None]
        total = (scores[..., None] + gained).masked_fill(dead, -torch.inf).flatten(1)
        # Candidates stand in the order of nodes, so a stable sort leaves ties by SID.
        ranked, order = total.sort(dim=1, descending=True, stable=True)
        keep = min(width, total.shape[1], trie.level_sizes[t + 1])
        scores, order = ranked[:, :keep], order[:, :keep]
        nodes, codes = (entry + 1).flatten(1).gather(1, order), code.flatten(1).gather(1, order)
        parents = order // len(child)
        if t + 1 < trie.num_levels:
            nodes, by_node = nodes.sort(dim=1)
            scores, codes, parents = (x.gather(1, by_node) for x in (scores, codes, parents))
    return torch.where(scores > -torch.inf, nodes - trie.first_leaf, -1)


def rank_items(
    core: Any, buffers: object, table: SidTable, requests: int, width: int, k: int
) -> Tensor:
    """Return the first k items of each request, int64 `[R, k]`, by a search with a core.

    Args:
        core: has `decode(buffers, parents, codes, t)`, as `search_sids` takes a step.
        buffers: of its `prefill`.
        table: the items' SIDs.
        requests: R.
        width: beams to keep.
        k: items; -1 where there are no more.
    """
    found = search_sids(partial(core.decode, buffers), table.trie, requests, width)
    return table.expand(found, k)
