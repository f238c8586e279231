"""cross_attention in Triton, on the layouts as they are: nothing is transposed in memory.

One program holds a tile of a request's context and walks over tiles of its beams. A context that
fits in one tile is loaded once for all of them and needs no running softmax; a longer one is walked
per tile of beams. Positions past a request's length are not loaded.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from grace.kernels.tuning import choose

LOG2_E = 1.4426950408889634  # exp(x) is exp2(x LOG2_E), and a GPU has exp2
# [beams of a tile, context positions of a tile, tiles of beams per program, warps, stages]
CANDIDATES = [
    [64, 128, 8, 4, 2], [64, 128, 16, 4, 2], [64, 128, 4, 4, 2], [64, 64, 1, 4, 3],
    [32, 32, 1, 4, 2], [16, 32, 1, 2, 2], [16, 16, 1, 1, 1],
]  # fmt: skip
FLOAT32_CANDIDATES = [[32, 32, 1, 4, 2], [16, 32, 1, 2, 2], [16, 16, 1, 1, 1]]  # no matrix units
SHARED_BYTES = 200 * 1024  # for tiles; of the 227 KiB that Hopper has, the rest is scratch


def cross_attention_triton(
    query: Tensor, key: Tensor, value: Tensor, lengths: Tensor | None
) -> Tensor:
    """Return `[B, M, H, D]`; the contract is `cross_attention`'s, `lengths` in range."""
    out = torch.empty(query.shape, dtype=query.dtype, device=query.device)
    _run_fastest(query, key, value, lengths, out, None, None)
    return out


def cross_attention_fp8_triton(
    query: Tensor, key: Tensor, value: Tensor, scales: Tensor, lengths: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Return values and scales; the contract is `cross_attention_fp8`'s, `lengths` in range."""
    out = torch.empty(query.shape, dtype=torch.float8_e4m3fn, device=query.device)
    row_scales = scales.new_empty(query.shape[0] * query.shape[1])
    _run_fastest(query, key, value, lengths, out, scales.contiguous(), row_scales)
    return out.flatten(0, 1).flatten(1), row_scales


def _run_fastest(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    lengths: Tensor | None,
    out: Tensor,
    scales: Tensor | None,
    row_scales: Tensor | None,
) -> None:
    batch, beams, num_heads, head_dim = query.shape
    num_kv_heads, num_positions = key.shape[1:3]
    query, key, value = (x if x.stride(3) == 1 else x.contiguous() for x in (query, key, value))
    wide_dim = max(triton.next_power_of_2(head_dim), 16)
    # Two dots in a row must not be float32's fast mode: it keeps ten bits.
    precision = "ieee" if query.element_size() >= 4 else "tf32"

    def run(candidate: list[int]) -> None:
        block_m, block_t, tiles, warps, stages = candidate
        # Heads first: programs that run together read whole rows of the queries between them.
        grid = (num_heads, triton.cdiv(beams, block_m * tiles), batch)
        cross_attention_kernel[grid](
            query, key, value, out, lengths, scales, row_scales, beams,
            head_dim**-0.5 * LOG2_E,
            *query.stride()[:3], *key.stride()[:3], *value.stride()[:3], *out.stride()[:3],
            T=num_positions, GROUP=num_heads // num_kv_heads, D=head_dim, WIDE_D=wide_dim,
            BLOCK_M=block_m, BLOCK_T=block_t, TILES=tiles, STAGES=stages, PRECISION=precision,
            MASKED=lengths is not None, num_warps=warps, num_stages=stages,
        )  # fmt: skip

    shape = (
        batch, triton.next_power_of_2(beams), num_heads, num_kv_heads, num_positions, head_dim,
        str(query.dtype), lengths is not None,
    )  # fmt: skip
    candidates = fitting_candidates(beams, num_positions, wide_dim, query.element_size())
    operation = "cross_attention_triton" if scales is None else "cross_attention_fp8"
    run(choose(operation, shape, candidates, run, query.device))


def fitting_candidates(
    beams: int, num_positions: int, head_dim: int, element_bytes: int
) -> list[list[int]]:
    """Return the candidates for a shape, tiles no larger than it and their buffers in memory."""
    fitting = []
    for block_m, block_t, tiles, warps, stages in (
        CANDIDATES if element_bytes == 2 else FLOAT32_CANDIDATES
    ):
        block_m, block_t = (
            max(min(block, triton.next_power_of_2(size)), 16)
            for block, size in ((block_m, beams), (block_t, num_positions))
        )
        tiles = min(tiles, triton.cdiv(beams, block_m))
        one_tile = num_positions <= block_t
        rows = (
            2 * block_t + (stages if tiles > 1 else 1) * block_m
            if one_tile
            else 2 * block_t * stages + block_m
        )
        warps = min(warps, max(block_m * block_t // 512, 1))
        candidate = [block_m, block_t, tiles, warps, stages]
        if rows * head_dim * element_bytes <= SHARED_BYTES and candidate not in fitting:
            fitting.append(candidate)
    return fitting


@triton.jit
def cross_attention_kernel(
    query, key, value, out, lengths, scales, row_scales, num_beams, scale,
    q_batch, q_beam, q_head, k_batch, k_head, k_position, v_batch, v_head, v_position,
    o_batch, o_beam, o_head,
    T: tl.constexpr, GROUP: tl.constexpr, D: tl.constexpr, WIDE_D: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_T: tl.constexpr, TILES: tl.constexpr, STAGES: tl.constexpr,
    PRECISION: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    head = tl.program_id(0)
    batch = tl.program_id(2).to(tl.int64)
    query += batch * q_batch + head * q_head
    key += batch * k_batch + (head // GROUP) * k_head
    value += batch * v_batch + (head // GROUP) * v_head
    out += batch * o_batch + head * o_head
    length = tl.load(lengths + batch) if MASKED else T
    first = tl.program_id(1) * (BLOCK_M * TILES)
    row_scale = None
    if scales is not None:
        row_scale = tl.load(scales + batch)
        row_scales += batch * num_beams

    if T <= BLOCK_T:
        k = load_tile(key, k_position, 0, length, T, BLOCK_T, D, WIDE_D, MASKED)
        v = load_tile(value, v_position, 0, length, T, BLOCK_T, D, WIDE_D, MASKED)
        for tile in tl.range(0, TILES, num_stages=STAGES):
            beam = first + tile * BLOCK_M + tl.arange(0, BLOCK_M)
            q = load_beams(query, q_beam, beam, num_beams, D, WIDE_D)
            scores = tl.dot(q, tl.trans(k), input_precision=PRECISION) * scale
            if MASKED or T < BLOCK_T:
                scores = tl.where(tl.arange(0, BLOCK_T)[None, :] < length, scores, float("-inf"))
            shares = tl.exp2(scores - tl.max(scores, 1)[:, None])
            total = tl.sum(shares, 1)
            attended = tl.dot(shares.to(v.dtype), v, input_precision=PRECISION)
            attended = attended / total[:, None]
            store_beams(
                out, o_beam, beam, num_beams, attended, row_scales, row_scale, head, D, WIDE_D
            )
    else:
        for tile in range(TILES):
            beam = first + tile * BLOCK_M + tl.arange(0, BLOCK_M)
            q = load_beams(query, q_beam, beam, num_beams, D, WIDE_D)
            top = tl.full((BLOCK_M,), float("-inf"), tl.float32)
            total = tl.zeros((BLOCK_M,), tl.float32)
            attended = tl.zeros((BLOCK_M, WIDE_D), tl.float32)
            for start in tl.range(0, T, BLOCK_T, num_stages=STAGES):
                k = load_tile(key, k_position, start, length, T, BLOCK_T, D, WIDE_D, MASKED)
                v = load_tile(value, v_position, start, length, T, BLOCK_T, D, WIDE_D, MASKED)
                scores = tl.dot(q, tl.trans(k), input_precision=PRECISION) * scale
                if MASKED or T % BLOCK_T != 0:
                    position = start + tl.arange(0, BLOCK_T)
                    scores = tl.where(position[None, :] < length, scores, float("-inf"))
                higher = tl.maximum(top, tl.max(scores, 1))
                shares = tl.exp2(scores - higher[:, None])
                shrink = tl.exp2(top - higher)
                total = total * shrink + tl.sum(shares, 1)
                attended = attended * shrink[:, None]
                attended = tl.dot(shares.to(v.dtype), v, attended, input_precision=PRECISION)
                top = higher
            attended = attended / total[:, None]
            store_beams(
                out, o_beam, beam, num_beams, attended, row_scales, row_scale, head, D, WIDE_D
            )


@triton.jit
def load_tile(
    base, stride, start, length, T: tl.constexpr, BLOCK_T: tl.constexpr,
    D: tl.constexpr, WIDE_D: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    position = start + tl.arange(0, BLOCK_T)
    column = tl.arange(0, WIDE_D)
    place = base + position[:, None] * stride + column[None, :]
    if MASKED or T % BLOCK_T != 0:
        mask = (position < length)[:, None] & (column < D)[None, :]
        return tl.load(place, mask=mask, other=0.0)
    elif D == WIDE_D:
        return tl.load(place)
    else:
        return tl.load(place, mask=(column < D)[None, :], other=0.0)


@triton.jit
def load_beams(base, stride, beam, num_beams, D: tl.constexpr, WIDE_D: tl.constexpr):
    column = tl.arange(0, WIDE_D)
    mask = (beam < num_beams)[:, None] & (column < D)[None, :]
    return tl.load(
        base + beam.to(tl.int64)[:, None] * stride + column[None, :], mask=mask, other=0.0
    )


@triton.jit
def store_beams(
    base, stride, beam, num_beams, tile, row_scales, row_scale, head,
    D: tl.constexpr, WIDE_D: tl.constexpr,
):  # fmt: skip
    if row_scales is not None:
        tile *= 1 / row_scale
        one_head = (beam < num_beams) & (head == 0)
        tl.store(row_scales + beam, row_scale + tl.zeros_like(beam).to(tl.float32), mask=one_head)
    column = tl.arange(0, WIDE_D)
    mask = (beam < num_beams)[:, None] & (column < D)[None, :]
    place = base + beam.to(tl.int64)[:, None] * stride + column[None, :]
    tl.store(place, tile.to(base.dtype.element_ty), mask=mask)
