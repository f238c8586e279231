"""The specification of match_children, in plain torch on any device."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from grace.kernels.match_children import RequestMasks, UnionRows


def match_reference(
    nodes: Tensor, child_offsets: Tensor, rows: UnionRows, masks: RequestMasks, num_words: int
) -> Tensor:
    """Return int32 [B, M, num_words]; the contract is `match_children`'s."""
    batch, beams = nodes.shape
    live = torch.nonzero(nodes.reshape(-1) >= 0).squeeze(1)
    of_beam, entry = _segments(nodes.reshape(-1)[live], child_offsets)
    place = entry - child_offsets[nodes.reshape(-1)[live]][of_beam]  # among its siblings
    row = live[of_beam]
    if rows.partition_offsets is None:
        of_child, partition = torch.arange(len(entry), device=nodes.device), entry + 1
    else:
        of_child, partition = _segments(entry + 1, rows.partition_offsets)
    passed = _partitions_pass(partition, row[of_child] // max(beams, 1), rows, masks)
    child_passes = torch.zeros(len(entry), dtype=torch.bool, device=nodes.device)
    child_passes[of_child[passed]] = True
    bits = torch.zeros(batch * beams, num_words * 32, dtype=torch.int64, device=nodes.device)
    bits[row, place] = child_passes.long()
    weights = 1 << torch.arange(32, device=nodes.device)
    words = (bits.reshape(batch, beams, num_words, 32) * weights).sum(3)
    return words.to(torch.int32)  # the cast keeps the low 32 bits


def _partitions_pass(
    partition: Tensor, request: Tensor, rows: UnionRows, masks: RequestMasks
) -> Tensor:
    """Return bool [n], whether each partition passes for its request."""
    bits = rows.bitmask_rows[rows.bitmask_index[partition]]
    want = masks.want[request]
    passed = ((bits & want) == want).all(1)
    shape = (len(partition), len(rows.other_bits), masks.places.shape[3])
    filters = rows.bloom_rows[rows.bloom_index[partition]].reshape(shape)
    for slot, other in enumerate(rows.other_bits.tolist()):
        count = masks.num_places[request, slot]
        hit = (count < 0) | (bits[:, other // 64] >> (other % 64) & 1 != 0)
        for j in range(masks.places.shape[2]):
            asked = masks.places[request, slot, j]
            held = ((filters[:, slot] & asked) == asked).all(1)
            hit = hit | ((j < count) & held)
        passed = passed & hit
    return passed


def _segments(chosen: Tensor, offsets: Tensor) -> tuple[Tensor, Tensor]:
    """Return, for every entry of the chosen segments, its place in `chosen`, and the entry."""
    first = offsets[chosen].long()
    counts = offsets[chosen + 1].long() - first
    which = torch.repeat_interleave(torch.arange(len(chosen), device=chosen.device), counts)
    before = torch.cumsum(counts, 0) - counts
    entry = torch.arange(len(which), device=chosen.device) - before[which] + first[which]
    return which, entry
