"""constrained_select in Triton: every candidate read once, none of them sorted.

A candidate is a number of 64 bits, its score above its node, whose order is the contract's. So no
two are equal, and the best `width` are those at or above a cut:

1. `score_groups` scores all candidates and keeps the best of each group of a beam's children.
2. `choose_groups` finds a cut with at least `width` and few more groups' bests at or above it. As
   many candidates are that good, so no candidate below the cut is among the best `width`.
3. `gather_candidates` scores the chosen groups again and lists what reaches the cut.
4. `thin_out` shortens that list where it is much longer than `width`.
5. `rank_candidates` counts, for each one, how many are better: its slot.

docs/constrained-select.md has the reasons and the bounds.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from grace.kernels.constrained_select.candidates import (
    LAST_NODE,
    NOTHING,
    SIZES,
    gather_candidates,
    score_groups,
)
from grace.kernels.constrained_select.tiles import Workspace, choose_tiles, num_bytes

BLOCK = 8192  # values that one program searches at once
EVERYTHING = tl.constexpr(2**63 - 1)


def select_triton(
    columns: Tensor,
    logsumexp: Tensor,
    scores: Tensor,
    nodes: Tensor,
    child_offsets: Tensor,
    child_tokens: Tensor,
    words: Tensor | None,
    allowed: Tensor | None,
    width: int,
    max_children: int,
    workspace: Workspace | None,
    out: tuple[Tensor, Tensor, Tensor, Tensor],
) -> None:
    """Fill `out`, (parents, tokens, nodes, scores); the contract is `constrained_select`'s.

    Raises:
        ValueError: if the trie has 2^32 nodes or more, or the workspace is too small.
    """
    if len(child_tokens) >= 2**32 - 1:
        raise ValueError(
            f"child_tokens must have fewer than {2**32 - 1} entries on a GPU, "
            f"got {len(child_tokens)}: divide the catalogue into several indexes"
        )
    batch, beams, _ = columns.shape
    if columns.stride(2) != 1:
        columns = columns.contiguous()
    tiles = choose_tiles(beams, width, max_children)
    if workspace is None:
        workspace = Workspace(num_bytes(tiles, batch), columns.device)
    buffers = workspace.buffers(tiles, batch)
    maxima, kept, cuts = buffers["maxima"], buffers["kept"], buffers["cuts"]
    kept_beams, chosen, counts = buffers["kept_beams"], buffers["chosen"], buffers["counts"]
    mask, how = (words, 1) if allowed is None else (allowed, 2)
    if mask is None:
        mask, how = child_tokens, 0
    step = (
        columns, logsumexp.contiguous(), scores.contiguous(), nodes.contiguous(), child_offsets,
        child_tokens, mask.contiguous(), columns.stride(0), columns.stride(1),
        0 if allowed is None else allowed.shape[2], beams,
    )  # fmt: skip
    share = tiles.groups // tiles.splits
    score_groups[(triton.cdiv(beams, tiles.rows), tiles.splits, batch)](
        *step, maxima, tiles.splits,
        ROWS=tiles.rows, COLS=tiles.columns, SHARE=share, MASK=how, num_warps=4,
    )  # fmt: skip
    block = _block(tiles.slots)
    choose_groups[(batch,)](
        maxima, cuts, chosen, counts, tiles.slots, width, tiles.chosen_groups,
        BLOCK=block, num_warps=_warps(block),
    )  # fmt: skip
    gather_candidates[(triton.cdiv(tiles.chosen_groups, tiles.gather_rows), batch)](
        *step, cuts, chosen, counts, kept, kept_beams, tiles.chosen_groups, tiles.kept,
        kept.shape[1], tiles.splits, tiles.columns, share,
        ROWS=tiles.gather_rows, COLS=tiles.gather_columns, MASK=how, num_warps=4,
    )  # fmt: skip
    block = _block(tiles.kept)
    thin_out[(batch,)](
        kept, kept_beams, counts, tiles.kept, tiles.ranked, kept.shape[1], width,
        BLOCK=block, num_warps=_warps(block),
    )  # fmt: skip
    rank_candidates[(triton.cdiv(tiles.ranked, 32), batch)](
        kept, kept_beams, counts, child_tokens, *out, tiles.kept, tiles.ranked, kept.shape[1],
        width, ROWS=32, COLS=64, num_warps=4,
    )  # fmt: skip


def _block(length: int) -> int:
    return min(max(triton.next_power_of_2(length), 128), BLOCK)


def _warps(block: int) -> int:
    return max(4, block // 256)


@triton.jit
def middle(low, high):
    """Their mean, rounded down, without the overflow of a sum."""
    return (low >> 1) + (high >> 1) + (low & high & 1)


@triton.jit
def find_cut(values, length, width, limit, BLOCK: tl.constexpr):
    """A value that at least `width` and at most `limit` of the values reach.

    Where fewer than `width` hold a candidate, all candidates reach it: bests that are so few say
    nothing about the rest of their groups. Each turn tests three values and so halves the range
    twice. It ends early: a cut need not be exact. Equal values may leave more than `limit` at the
    end; callers do not write past it.
    """
    top = NOTHING
    bottom = EVERYTHING
    count = 0
    begin = 0
    while begin < length:
        place = begin + tl.arange(0, BLOCK)
        value = tl.load(values + place, mask=place < length, other=NOTHING)
        top = tl.maximum(top, tl.max(value, 0))
        bottom = tl.minimum(bottom, tl.min(tl.where(value > NOTHING, value, EVERYTHING), 0))
        count += tl.sum((value > NOTHING).to(tl.int32), 0)
        begin += BLOCK
    low = tl.where(count >= width, bottom, NOTHING + 1)
    high = top + 1
    between = middle(low, high)
    while (count > limit) & (between > low):
        lower = middle(low, between)
        upper = middle(between, high)
        reach_lower = 0
        reach_between = 0
        reach_upper = 0
        begin = 0
        while begin < length:
            place = begin + tl.arange(0, BLOCK)
            value = tl.load(values + place, mask=place < length, other=NOTHING)
            # Three counts of at most BLOCK in one sum: one barrier instead of three.
            counts = (value >= lower).to(tl.int64)
            counts += (value >= between).to(tl.int64) << 20
            counts += (value >= upper).to(tl.int64) << 40
            packed = tl.sum(counts, 0)
            reach_lower += (packed & 0xFFFFF).to(tl.int32)
            reach_between += ((packed >> 20) & 0xFFFFF).to(tl.int32)
            reach_upper += (packed >> 40).to(tl.int32)
            begin += BLOCK
        if reach_upper >= width:
            low = upper
            count = reach_upper
        elif reach_between >= width:
            low = between
            high = upper
            count = reach_between
        elif reach_lower >= width:
            low = lower
            high = between
            count = reach_lower
        else:
            high = lower
        between = middle(low, high)
    return low


@triton.jit(do_not_specialize=SIZES)
def choose_groups(
    maxima, cuts, chosen, counts, slots, width, capacity, BLOCK: tl.constexpr
):  # fmt: skip
    request = tl.program_id(0).to(tl.int64)
    values = maxima + request * slots
    cut = find_cut(values, slots, width, capacity, BLOCK)
    total = 0
    begin = 0
    while begin < slots:
        slot = begin + tl.arange(0, BLOCK)
        reaches = tl.load(values + slot, mask=slot < slots, other=NOTHING) >= cut
        place = total + tl.cumsum(reaches.to(tl.int32), 0) - 1
        tl.store(chosen + request * capacity + place, slot, mask=reaches & (place < capacity))
        total += tl.sum(reaches.to(tl.int32), 0)
        begin += BLOCK
    tl.store(cuts + request, cut)
    tl.store(counts + request * 3, tl.minimum(total, capacity))
    tl.store(counts + request * 3 + 1, 0)


@triton.jit(do_not_specialize=SIZES)
def thin_out(
    kept, kept_beams, counts, kept_capacity, limit, stride, width, BLOCK: tl.constexpr
):  # fmt: skip
    request = tl.program_id(0).to(tl.int64)
    kept += request * stride
    kept_beams += request * stride
    length = tl.minimum(tl.load(counts + request * 3 + 1), kept_capacity)
    total = length
    if length > limit:
        cut = find_cut(kept, length, width, limit, BLOCK)
        total = 0
        begin = 0
        while begin < length:
            place = begin + tl.arange(0, BLOCK)
            key = tl.load(kept + place, mask=place < length, other=NOTHING)
            reaches = key >= cut
            beam = tl.load(kept_beams + place, mask=reaches, other=0)
            target = total + tl.cumsum(reaches.to(tl.int32), 0) - 1
            reaches = reaches & (target < limit)
            tl.store(kept + kept_capacity + target, key, mask=reaches)
            tl.store(kept_beams + kept_capacity + target, beam, mask=reaches)
            total += tl.sum((key >= cut).to(tl.int32), 0)
            begin += BLOCK
    tl.store(counts + request * 3 + 2, tl.minimum(total, limit))


@triton.jit(do_not_specialize=SIZES)
def rank_candidates(
    kept, kept_beams, counts, child_tokens, parents, tokens, nodes, scores, kept_capacity, limit,
    stride, width, ROWS: tl.constexpr, COLS: tl.constexpr,
):  # fmt: skip
    request = tl.program_id(1).to(tl.int64)
    total = tl.load(counts + request * 3 + 2)
    thinned = tl.load(counts + request * 3 + 1) > limit
    shift = request * stride + tl.where(thinned, kept_capacity, 0)
    kept += shift
    kept_beams += shift
    place = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    key = tl.load(kept + place, mask=place < total, other=NOTHING)
    beam = tl.load(kept_beams + place, mask=place < total, other=0)
    better = tl.zeros((ROWS, COLS), tl.int32)  # summed once, since sums cross threads
    begin = 0
    while begin < total:
        other = begin + tl.arange(0, COLS)
        others = tl.load(kept + other, mask=other < total, other=NOTHING)[None, :]
        owners = tl.load(kept_beams + other, mask=other < total, other=0)[None, :]
        # Equal keys only where two beams hold one node, which no search does.
        twin = (others == key[:, None]) & (owners < beam[:, None])
        better += ((others > key[:, None]) | twin).to(tl.int32)
        begin += COLS
    rank = tl.sum(better, 1)
    live = (place < total) & (rank < width)
    node = LAST_NODE - (key & LAST_NODE)
    ordered = (key >> 32).to(tl.int32)
    score = (ordered ^ ((ordered >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)
    slot = request * width + rank
    tl.store(parents + slot, beam.to(tl.int64), mask=live)
    tl.store(tokens + slot, tl.load(child_tokens + node - 1, mask=live, other=0).to(tl.int64),
             mask=live)  # fmt: skip
    tl.store(nodes + slot, node, mask=live)
    tl.store(scores + slot, score, mask=live)
    dead = (place >= total) & (place < width)
    slot = request * width + place
    nowhere = tl.zeros((ROWS,), tl.int64)
    tl.store(parents + slot, nowhere, mask=dead)
    tl.store(tokens + slot, nowhere, mask=dead)
    tl.store(nodes + slot, nowhere - 1, mask=dead)
    tl.store(scores + slot, nowhere.to(tl.float32) - float("inf"), mask=dead)
