"""Candidates as 64-bit numbers: the two kernels that read a trie's children and their logits."""

from __future__ import annotations

import triton
import triton.language as tl

NOTHING = tl.constexpr(-(2**63))  # below every candidate
LAST_NODE = tl.constexpr(2**32 - 1)
# One compilation serves all of them: what varies from step to step, and never matters for speed.
SIZES = (
    "stride_b", "stride_m", "child_words", "beams", "splits", "slots", "width", "capacity",
    "kept_capacity", "stride", "tile", "share", "limit",
)  # fmt: skip


@triton.jit
def load_beams(logsumexp, scores, nodes, child_offsets, row, inside):
    """Normaliser, score, first entry and number of children of some beams; 0 for a dead one."""
    node = tl.load(nodes + row, mask=inside, other=-1)
    normaliser = tl.load(logsumexp + row, mask=inside, other=float("inf"))
    live = (node >= 0) & (tl.abs(normaliser) < float("inf"))  # false for NaN
    score = tl.load(scores + row, mask=inside, other=0.0)
    first = tl.load(child_offsets + node, mask=live, other=0).to(tl.int64)
    last = tl.load(child_offsets + node + 1, mask=live, other=0).to(tl.int64)
    return normaliser, score, first, (last - first).to(tl.int32)


@triton.jit
def candidate_keys(
    columns, child_tokens, mask, request, row, start, normaliser, score, first, child, inside,
    child_words, MASK: tl.constexpr,
):  # fmt: skip
    """The 64-bit numbers of the beams' j-th children, j = `child`; NOTHING where there is none.

    row, start, normaliser, score, first: [rows], of the beams; `start` is where its logits begin.
    """
    entry = first[:, None] + child
    token = tl.load(child_tokens + entry, mask=inside, other=0)
    if MASK == 1:
        word = tl.load(mask + entry + 1, mask=inside, other=0)
        inside = inside & ((word >> request) & 1 != 0)
    if MASK == 2:
        place = row[:, None] * child_words + child // 32
        word = tl.load(mask + place, mask=inside & (child < child_words * 32), other=0)
        inside = inside & ((word >> (child % 32)) & 1 != 0)
    logit = tl.load(columns + start[:, None] + token, mask=inside, other=0.0)
    # The reference rounds exactly here, to float32; nothing is left for an FMA to contract.
    step = (logit.to(tl.float64) - normaliser[:, None]).to(tl.float32)
    total = score[:, None] + step
    inside = inside & (total > float("-inf"))  # false for NaN
    bits = total.to(tl.int32, bitcast=True)
    bits = tl.where(bits == -2147483648, 0, bits)  # -0.0 equals 0.0
    ordered = (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(tl.int64)
    return tl.where(inside, (ordered << 32) | (LAST_NODE - (entry + 1)), NOTHING)


@triton.jit(do_not_specialize=SIZES)
def score_groups(
    columns, logsumexp, scores, nodes, child_offsets, child_tokens, mask, stride_b, stride_m,
    child_words, beams, maxima, splits,
    ROWS: tl.constexpr, COLS: tl.constexpr, SHARE: tl.constexpr, MASK: tl.constexpr,
):  # fmt: skip
    request = tl.program_id(2)
    split = tl.program_id(1)
    beam = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    row = request.to(tl.int64) * beams + beam
    start = request.to(tl.int64) * stride_b + beam.to(tl.int64) * stride_m
    normaliser, score, first, count = load_beams(
        logsumexp, scores, nodes, child_offsets, row, beam < beams
    )
    best = tl.full((ROWS, COLS), NOTHING, tl.int64)
    column = tl.arange(0, COLS)[None, :]
    longest = tl.max(count, 0)
    begin = split * COLS
    while begin < longest:
        child = begin + column
        keys = candidate_keys(
            columns, child_tokens, mask, request, row, start, normaliser, score, first, child,
            child < count[:, None], child_words, MASK,
        )  # fmt: skip
        best = tl.maximum(best, keys)
        begin += splits * COLS
    if SHARE < COLS:
        best = tl.max(tl.reshape(best, (ROWS, COLS // SHARE, SHARE)), 1)
    group = split * SHARE + tl.arange(0, SHARE)[None, :]
    tl.store(maxima + row[:, None] * (splits * SHARE) + group, best, mask=(beam < beams)[:, None])


@triton.jit(do_not_specialize=SIZES)
def gather_candidates(
    columns, logsumexp, scores, nodes, child_offsets, child_tokens, mask, stride_b, stride_m,
    child_words, beams, cuts, chosen, counts, kept, kept_beams, capacity, kept_capacity, stride,
    splits, tile, share, ROWS: tl.constexpr, COLS: tl.constexpr, MASK: tl.constexpr,
):  # fmt: skip
    request = tl.program_id(1)
    wide = request.to(tl.int64)
    number = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside = number < tl.load(counts + wide * 3)
    slot = tl.load(chosen + wide * capacity + number, mask=inside, other=0)
    beam = slot // (splits * share)
    row = wide * beams + beam
    start = wide * stride_b + beam.to(tl.int64) * stride_m
    normaliser, score, first, count = load_beams(
        logsumexp, scores, nodes, child_offsets, row, inside
    )
    cut = tl.load(cuts + wide)
    turns = tile // share  # children of a group in one tile of the first reading
    split = ((slot // share) % splits)[:, None]
    group = (slot % share)[:, None]
    end = tl.cdiv(tl.max(count, 0), splits * tile) * turns
    begin = 0
    while begin < end:
        turn = (begin + tl.arange(0, COLS))[None, :]
        child = ((turn // turns) * splits + split) * tile + (turn % turns) * share + group
        keys = candidate_keys(
            columns, child_tokens, mask, request, row, start, normaliser, score, first, child,
            child < count[:, None], child_words, MASK,
        )  # fmt: skip
        keys = tl.reshape(keys, (ROWS * COLS,))
        owner = tl.reshape(tl.broadcast_to(beam[:, None], (ROWS, COLS)), (ROWS * COLS,))
        reaches = keys >= cut
        found = tl.sum(reaches.to(tl.int32), 0)
        if found > 0:
            # Programs append in any order; ranks do not depend on it.
            place = tl.atomic_add(counts + wide * 3 + 1, found, sem="relaxed")
            place += tl.cumsum(reaches.to(tl.int32), 0) - 1
            reaches = reaches & (place < kept_capacity)
            tl.store(kept + wide * stride + place, keys, mask=reaches)
            tl.store(kept_beams + wide * stride + place, owner, mask=reaches)
        begin += COLS
