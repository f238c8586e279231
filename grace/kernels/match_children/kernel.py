"""match_children for CUDA in Triton: one program per beam (GRACE, section 4.4)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl
from torch import Tensor

if TYPE_CHECKING:
    from grace.kernels.match_children import RequestMasks, UnionRows

INTERPRETED = bool(triton.knobs.runtime.interpret)
BLOCK_WORDS = 4  # 32 children a word, one thread each


def match_triton(
    nodes: Tensor, child_offsets: Tensor, rows: UnionRows, masks: RequestMasks, num_words: int
) -> Tensor:
    """Return int32 [B, M, num_words]; the contract is `match_children`'s."""
    batch, beams = nodes.shape
    allowed = torch.zeros(batch, beams, num_words, dtype=torch.int32, device=nodes.device)
    if allowed.numel() == 0:
        return allowed
    filter_words = masks.places.shape[3]
    _match_children[(batch * beams,)](
        nodes.contiguous(), child_offsets, rows.partition_offsets, rows.bitmask_index,
        rows.bloom_index, rows.bitmask_rows, rows.bloom_rows, rows.other_bits,
        masks.want.contiguous(), masks.places.contiguous(), masks.num_places.contiguous(), allowed,
        beams, num_words, masks.places.shape[2],
        NUM_BITMASK_WORDS=rows.bitmask_rows.shape[1],
        NUM_SLOTS=len(rows.other_bits),
        FILTER_WORDS=filter_words,
        FILTER_LANES=triton.next_power_of_2(max(filter_words, 1)),
        JAGGED=rows.partition_offsets is not None,
        BLOCK_WORDS=BLOCK_WORDS,
    )  # fmt: skip
    return allowed


@triton.jit
def _any(flags):
    return tl.max(flags.to(tl.int32), 0) != 0


@triton.jit
def _match_children(
    nodes, child_offsets, partition_offsets, bitmask_index, bloom_index, bitmask_rows, bloom_rows,
    other_bits, want, places, num_places, allowed,
    beams, num_words, max_places,
    NUM_BITMASK_WORDS: tl.constexpr,
    NUM_SLOTS: tl.constexpr,
    FILTER_WORDS: tl.constexpr,
    FILTER_LANES: tl.constexpr,
    JAGGED: tl.constexpr,
    BLOCK_WORDS: tl.constexpr,
):  # fmt: skip
    beam = tl.program_id(0).to(tl.int64)
    request = beam // beams
    node = tl.load(nodes + beam)
    first, count = node, node * 0
    if node >= 0:
        first = tl.load(child_offsets + node).to(tl.int64)
        count = tl.load(child_offsets + node + 1).to(tl.int64) - first
    word = tl.arange(0, FILTER_LANES)
    start = count * 0
    while start < count:
        lane = start + tl.arange(0, BLOCK_WORDS * 32)
        open_ = lane < count
        child = first + lane + 1
        if JAGGED:
            partition = tl.load(partition_offsets + child, mask=open_, other=0).to(tl.int64)
            end = tl.load(partition_offsets + child + 1, mask=open_, other=0).to(tl.int64)
        else:
            partition = child
            end = child + 1
        open_ = open_ & (partition < end)
        passed = lane < 0
        while _any(open_):
            # Bitmask first, word by word until no child of the block is left.
            bits = tl.load(bitmask_index + partition, mask=open_, other=0).to(tl.int64)
            bits = bitmask_rows + bits * NUM_BITMASK_WORDS
            left = open_
            t = 0
            while (t < NUM_BITMASK_WORDS) & _any(left):
                asked = tl.load(want + request * NUM_BITMASK_WORDS + t)
                held = tl.load(bits + t, mask=left, other=0)
                left = left & ((held & asked) == asked)
                t += 1
            for slot in tl.static_range(NUM_SLOTS):
                known = tl.load(num_places + request * NUM_SLOTS + slot)
                other = tl.load(other_bits + slot)
                held = tl.load(bits + other // 64, mask=left, other=0)
                waiting = left & (((held >> (other % 64)) & 1) == 0) & (known >= 0)
                row = tl.load(bloom_index + partition, mask=waiting, other=0).to(tl.int64)
                filters = tl.load(
                    bloom_rows + ((row * NUM_SLOTS + slot) * FILTER_WORDS)[:, None] + word[None, :],
                    mask=waiting[:, None] & (word < FILTER_WORDS)[None, :],
                    other=0,
                )
                place = 0
                while (place < known) & _any(waiting):
                    at = ((request * NUM_SLOTS + slot) * max_places + place) * FILTER_WORDS
                    asked = tl.load(places + at + word, mask=word < FILTER_WORDS, other=0)
                    lacks = (filters & asked[None, :]) != asked[None, :]
                    waiting = waiting & (tl.max(lacks.to(tl.int32), 1) != 0)
                    place += 1
                left = left & (waiting == 0)
            passed = passed | left
            partition += 1
            open_ = open_ & (left == 0) & (partition < end)
        bit = passed.to(tl.int64) << (lane % 32)
        packed = tl.sum(tl.reshape(bit, (BLOCK_WORDS, 32)), 1).to(tl.int32)
        at = start // 32 + tl.arange(0, BLOCK_WORDS)
        tl.store(allowed + beam * num_words + at, packed, mask=at < num_words)
        start += BLOCK_WORDS * 32
