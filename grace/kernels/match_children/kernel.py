"""match_children for CUDA in Triton, in the order of GRACE's section 4.4.

A program of one warp tests 32 children of a beam and writes one word. So every early exit is a vote
within a warp, without a barrier, and a beam of many children keeps many warps busy. The request's
masks are the same for all its programs and come out of the first-level cache.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl
from torch import Tensor

if TYPE_CHECKING:
    from grace.kernels.match_children import RequestMasks, UnionRows

INTERPRETED = bool(triton.knobs.runtime.interpret)
PLACES_TOGETHER = 8  # tested between two votes: a vote costs as much as some tests


def match_triton(
    nodes: Tensor,
    child_offsets: Tensor,
    rows: UnionRows,
    masks: RequestMasks,
    num_words: int,
    out: Tensor | None = None,
) -> Tensor:
    """Return int32 [B, M, num_words]; the contract is `match_children`'s."""
    batch, beams = nodes.shape
    if out is None:
        out = torch.empty(batch, beams, num_words, dtype=torch.int32, device=nodes.device)
    if out.numel() == 0:
        return out
    _match_children[(batch * beams, num_words)](
        nodes.contiguous(), child_offsets, rows.partition_offsets, rows.bitmask_index,
        rows.bloom_index, rows.bitmask_rows, rows.bloom_rows, rows.other_bits,
        masks.want.contiguous(), masks.places.contiguous(), masks.num_places.contiguous(), out,
        beams, num_words, masks.places.shape[2],
        BITMASK_WORDS=rows.bitmask_rows.shape[1],
        SLOTS=len(rows.other_bits),
        FILTER_WORDS=masks.places.shape[3],
        JAGGED=rows.partition_offsets is not None,
        PLACES_TOGETHER=PLACES_TOGETHER,
        num_warps=1,
    )  # fmt: skip
    return out


@triton.jit
def _any(flags):
    return tl.max(flags.to(tl.int32), 0) != 0


# One compilation for all sizes: a batch must not meet a new one while others wait.
@triton.jit(do_not_specialize=("beams", "num_words", "max_places"))
def _match_children(
    nodes, child_offsets, partition_offsets, bitmask_index, bloom_index, bitmask_rows, bloom_rows,
    other_bits, want, places, num_places, allowed,
    beams, num_words, max_places,
    BITMASK_WORDS: tl.constexpr,
    SLOTS: tl.constexpr,
    FILTER_WORDS: tl.constexpr,
    JAGGED: tl.constexpr,
    PLACES_TOGETHER: tl.constexpr,
):  # fmt: skip
    beam = tl.program_id(0).to(tl.int64)
    word = tl.program_id(1).to(tl.int64)
    request = (tl.program_id(0) // beams).to(tl.int64)  # 64-bit division is slow
    out = allowed + beam * num_words + word
    node = tl.load(nodes + beam)
    if node < 0:
        tl.store(out, 0)
        return
    first = tl.load(child_offsets + node).to(tl.int64)
    count = tl.load(child_offsets + node + 1).to(tl.int64) - first
    if word * 32 >= count:
        tl.store(out, 0)
        return
    lane = tl.arange(0, 32)
    testing = word * 32 + lane < count
    child = first + word * 32 + lane + 1
    partition = child
    end = child + 1
    if JAGGED:
        partition = tl.load(partition_offsets + child, mask=testing, other=0).to(tl.int64)
        end = tl.load(partition_offsets + child + 1, mask=testing, other=0).to(tl.int64)
    testing = testing & (partition < end)
    passed = lane < 0
    while _any(testing):
        # The bitmask, word by word until no child is left.
        bits = tl.load(bitmask_index + partition, mask=testing, other=0).to(tl.int64)
        bits = bitmask_rows + bits * BITMASK_WORDS
        fits = testing
        t = 0
        while (t < BITMASK_WORDS) & _any(fits):
            asked = tl.load(want + request * BITMASK_WORDS + t)
            held = tl.load(bits + t, mask=fits, other=0)
            fits = fits & ((held & asked) == asked)
            t += 1
        for slot in tl.static_range(SLOTS):
            known = tl.load(num_places + request * SLOTS + slot)
            other = tl.load(other_bits + slot)
            held = tl.load(bits + other // 64, mask=fits, other=0)
            seeking = fits & (((held >> (other % 64)) & 1) == 0) & (known >= 0)
            row = tl.load(bloom_index + partition, mask=seeking, other=0).to(tl.int64)
            row = bloom_rows + (row * SLOTS + slot) * FILTER_WORDS
            held_words = ()  # one tensor each, so that a child's filter lies in its own thread
            for t in tl.static_range(FILTER_WORDS):
                held_words = held_words + (tl.load(row + t, mask=seeking, other=0),)  # noqa: RUF005
            place = 0
            while (place < known) & _any(seeking):
                for i in tl.static_range(PLACES_TOGETHER):
                    at = tl.minimum(place + i, known - 1)  # again the last one where none is left
                    at = ((request * SLOTS + slot) * max_places + at) * FILTER_WORDS
                    missing = tl.zeros((32,), tl.int64)
                    for t in tl.static_range(FILTER_WORDS):
                        missing |= tl.load(places + at + t) & ~held_words[t]
                    seeking = seeking & (missing != 0)
                place += PLACES_TOGETHER
            fits = fits & (seeking == 0)
        passed = passed | fits
        partition += 1
        testing = testing & (fits == 0) & (partition < end)
    packed = tl.sum(passed.to(tl.int64) << lane, 0).to(tl.int32)
    tl.store(out, packed)
