"""The specification of constrained_select, in plain torch on any device."""

from __future__ import annotations

import torch
from torch import Tensor


def select_reference(
    columns: Tensor,
    logsumexp: Tensor,
    scores: Tensor,
    nodes: Tensor,
    child_offsets: Tensor,
    child_tokens: Tensor,
    words: Tensor | None,
    allowed: Tensor | None,
    width: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return (parents, tokens, nodes, scores); the contract is `constrained_select`'s."""
    batch = columns.shape[0]
    parents = torch.zeros(batch, width, dtype=torch.int64, device=columns.device)
    tokens, chosen = torch.zeros_like(parents), torch.full_like(parents, -1)
    totals = torch.full((batch, width), -torch.inf, device=columns.device)
    for b in range(batch):
        live = torch.nonzero((nodes[b] >= 0) & torch.isfinite(logsumexp[b])).squeeze(1)
        beam, entry = _children(nodes[b, live], child_offsets)
        beam = live[beam]
        if words is not None:
            may = (words[entry + 1] >> b & 1) != 0
            beam, entry = beam[may], entry[may]
        if allowed is not None:
            place = (entry - child_offsets[nodes[b, beam]]).long()  # among its siblings
            may = (allowed[b, beam, place // 32] >> (place % 32) & 1) != 0
            beam, entry = beam[may], entry[may]
        token = child_tokens[entry].long()
        step = (columns[b, beam, token].double() - logsumexp[b, beam]).float()
        total = scores[b, beam] + step
        possible = torch.nonzero(total > -torch.inf).squeeze(1)
        # Candidates in node order, then a stable sort by score: ties stay in node order.
        possible = possible[torch.argsort(entry[possible])]
        best = possible[torch.argsort(total[possible], descending=True, stable=True)[:width]]
        parents[b, : len(best)] = beam[best]
        tokens[b, : len(best)] = token[best]
        chosen[b, : len(best)] = entry[best] + 1
        totals[b, : len(best)] = total[best]
    return parents, tokens, chosen, totals


def _children(nodes: Tensor, child_offsets: Tensor) -> tuple[Tensor, Tensor]:
    """Return, for every child of every node, the row of its parent in `nodes` and its entry."""
    first = child_offsets[nodes].long()
    counts = child_offsets[nodes + 1].long() - first
    row = torch.repeat_interleave(torch.arange(len(nodes), device=nodes.device), counts)
    before = torch.cumsum(counts, 0) - counts
    entry = torch.arange(len(row), device=nodes.device) - before[row] + first[row]
    return row, entry
