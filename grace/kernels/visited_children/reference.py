"""The specification of BatchVisits.children, in plain torch, from the words of all nodes."""

from __future__ import annotations

import torch
from torch import Tensor


def visited_children_reference(nodes: Tensor, child_offsets: Tensor, words: Tensor) -> Tensor:
    """Return int32 [B, M, ceil(C / 32)].

    Args:
        nodes: int64 [B, M], inner nodes; -1 for a dead beam.
        child_offsets: int64 or int32 [inner nodes + 1]; entry e leads to node e + 1.
        words: int32 [S], bit b set where some ad under the node accepts request b.
    """
    live = nodes >= 0
    first = child_offsets[nodes.clamp(min=0)].long()
    counts = torch.where(live, child_offsets[nodes.clamp(min=0) + 1] - first, 0)
    width = -(-int(counts.max()) // 32) if counts.numel() else 0
    child = torch.arange(32 * width)
    inside = child < counts[..., None]
    node = torch.where(inside, first[..., None] + child + 1, 0)
    bits = (words[node] >> torch.arange(len(nodes))[:, None, None]) & inside
    packed = (bits.reshape(*nodes.shape, width, 32).long() << torch.arange(32)).sum(-1)
    return packed.to(torch.int32)
