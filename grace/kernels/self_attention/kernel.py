"""Self-attention over short prefixes in Triton: plain dot products, many rows and heads a program.

A prefix is a few tokens, so there is nothing for matrix units: a block-diagonal tile of G rows
would do G times the arithmetic and let a row's NaN into its neighbours. Here each (row, key head)
pair owns some lanes of a warp, which hold its keys and values in registers, 16 bytes a lane and
load. Every load is issued before the first sum needs one; each block is read once per pair.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from grace.kernels.fp8_rows.kernel import magnitude, quantize_rows_triton, scale_of
from grace.kernels.tuning import choose

LOG2_E = 1.4426950408889634  # exp(x) is exp2(x LOG2_E), and a GPU has exp2
# [warps, bytes that a lane holds of each key]; the first is the default
CANDIDATES = [[4, 16], [1, 16], [2, 16], [8, 16], [2, 32]]
FP8_CANDIDATES = [*CANDIDATES, [4, 32], [16, 16], [8, 32]]  # those that hold whole rows


def attend_triton(
    query: Tensor,
    pool: Tensor,
    table: Tensor | None,
    t: int,
    max_length: int,
    fused: bool,
    keep: bool = True,
) -> Tensor:
    """Return `[rows, H, D]`; the contracts are those of `grace.kernels.self_attention`.

    Args:
        query: `[rows, heads, D]`: H query heads, behind them 2 Hkv heads of new keys and values
            where `fused`. With a table and not `fused` it is `[blocks, H, D]` and read through it.
        pool: `[blocks, 2, Hkv, D]`.
        table: int32 `[rows, max_length]`; None where row r owns blocks `r * max_length` and on.
        fused: whether position t comes from `query`.
        keep: whether it is then to be written.
    """
    rows, num_heads = _sizes(query, pool, table, fused)
    out = query.new_empty((rows, num_heads, query.shape[2]))
    _run_fastest(CANDIDATES, query, pool, table, out, None, t, max_length, fused, keep)
    return out


def attend_fp8_triton(
    query: Tensor,
    pool: Tensor,
    table: Tensor,
    t: int,
    max_length: int,
    fused: bool,
    keep: bool = True,
) -> tuple[Tensor, Tensor]:
    """Return values `[rows, H D]` and scales of the versions with a table; as `attend_triton`."""
    pairs = (_pairs(candidate, query) for candidate in FP8_CANDIDATES)
    whole = [c for c, p in zip(FP8_CANDIDATES, pairs, strict=True) if p % pool.shape[2] == 0]
    if not whole:
        heads = attend_triton(query, pool, table, t, max_length, fused, keep)
        return quantize_rows_triton(heads.flatten(1))
    rows, num_heads = _sizes(query, pool, table, fused)
    values = query.new_empty((rows, num_heads * query.shape[2]), dtype=torch.float8_e4m3fn)
    scales = query.new_empty(rows, dtype=torch.float32)
    _run_fastest(whole, query, pool, table, values, scales, t, max_length, fused, keep)
    return values, scales


def _sizes(query: Tensor, pool: Tensor, table: Tensor | None, fused: bool) -> tuple[int, int]:
    rows = len(query if table is None else table)
    return rows, query.shape[1] - 2 * pool.shape[2] if fused else query.shape[1]


def _pairs(candidate: list[int], query: Tensor) -> int:
    """How many (row, key head) pairs one program holds."""
    warps, lane_bytes = candidate
    key_bytes = query.element_size() * triton.next_power_of_2(query.shape[2])
    return max(warps * 32 * lane_bytes // key_bytes, 1)


def _run_fastest(
    candidates: list[list[int]],
    query: Tensor,
    pool: Tensor,
    table: Tensor | None,
    out: Tensor,
    scales: Tensor | None,
    t: int,
    max_length: int,
    fused: bool,
    keep: bool,
) -> None:
    rows, num_heads = _sizes(query, pool, table, fused)
    if rows == 0:
        return
    num_kv_heads, head_dim = pool.shape[2:]
    if query.stride(2) != 1 or query.stride(1) != head_dim:
        query = query.contiguous()
    wide_dim = triton.next_power_of_2(head_dim)

    def run(candidate: list[int]) -> None:
        pairs = _pairs(candidate, query)
        attend_kernel[(triton.cdiv(rows * num_kv_heads, pairs),)](
            query, pool, table, out, scales, rows, query.stride(0),
            head_dim**-0.5 * LOG2_E,
            T=t, L=max_length, KV_HEADS=num_kv_heads, GROUP=num_heads // num_kv_heads,
            D=head_dim, WIDE_D=wide_dim, PAIRS=pairs, FUSED=fused, PAGED=table is not None,
            KEEP=keep, num_warps=candidate[0],
        )  # fmt: skip

    shape = (
        triton.next_power_of_2(rows), num_heads, num_kv_heads, head_dim, t, max_length,
        str(query.dtype), fused, table is not None, keep,
    )  # fmt: skip
    operation = "self_attention" if scales is None else "self_attention_fp8"
    run(choose(operation, shape, candidates, run, query.device))


@triton.jit
def attend_kernel(
    query, pool, table, out, scales, num_rows, query_stride, scale,
    T: tl.constexpr, L: tl.constexpr, KV_HEADS: tl.constexpr, GROUP: tl.constexpr,
    D: tl.constexpr, WIDE_D: tl.constexpr, PAIRS: tl.constexpr,
    FUSED: tl.constexpr, PAGED: tl.constexpr, KEEP: tl.constexpr,
):  # fmt: skip
    pair = tl.program_id(0).to(tl.int64) * PAIRS + tl.arange(0, PAIRS)
    inside = pair < num_rows * KV_HEADS
    row = pair // KV_HEADS
    kv_head = pair % KV_HEADS
    column = tl.arange(0, WIDE_D)
    mask = inside[:, None]
    if WIDE_D != D:
        mask = mask & (column < D)[None, :]
    within = (kv_head * D)[:, None] + column[None, :]

    keys = ()
    values = ()
    for j in tl.static_range(T if FUSED else T + 1):
        if PAGED:
            block = tl.load(table + row * L + j, mask=inside, other=0).to(tl.int64)
        else:
            block = row * L + j
        place = pool + (block * (2 * KV_HEADS * D))[:, None] + within
        keys += (tl.load(place, mask=mask, other=0.0),)
        values += (tl.load(place + KV_HEADS * D, mask=mask, other=0.0),)
    source = row
    if PAGED and not FUSED:
        source = tl.load(table + row * L + T, mask=inside, other=0).to(tl.int64)
    row_start = query + (source * query_stride)[:, None]
    if FUSED:
        place = row_start + GROUP * KV_HEADS * D + within
        keys += (tl.load(place, mask=mask, other=0.0),)
        values += (tl.load(place + KV_HEADS * D, mask=mask, other=0.0),)

    largest = tl.zeros((PAIRS,), tl.int32)
    held = ()
    for g in tl.static_range(GROUP):
        head = (kv_head * GROUP + g) * D
        q = tl.load(row_start + head[:, None] + column[None, :], mask=mask, other=0.0)
        q = q.to(tl.float32) * scale
        scores = ()
        top = tl.full((PAIRS,), float("-inf"), tl.float32)
        for j in tl.static_range(T + 1):
            score = tl.sum(q * keys[j].to(tl.float32), 1)
            scores += (score,)
            top = tl.maximum(top, score)
        total = tl.zeros((PAIRS,), tl.float32)
        attended = tl.zeros((PAIRS, WIDE_D), tl.float32)
        for j in tl.static_range(T + 1):
            share = tl.exp2(scores[j] - top)
            total += share
            attended += share[:, None] * values[j].to(tl.float32)
        attended = attended / total[:, None]
        if scales is None:
            place = out + (row * (GROUP * KV_HEADS * D) + head)[:, None] + column[None, :]
            tl.store(place, attended.to(out.dtype.element_ty), mask=mask)
        else:
            largest = tl.maximum(largest, tl.max(magnitude(attended), 1))
            held += (attended,)

    if scales is not None:
        # The program holds all pairs of its rows.
        ROWS: tl.constexpr = PAIRS // KV_HEADS
        row_scale = scale_of(tl.max(tl.reshape(largest, (ROWS, KV_HEADS)), 1))
        pair_scale = tl.reshape(tl.broadcast_to(row_scale[:, None], (ROWS, KV_HEADS)), (PAIRS,))
        tl.store(scales + row, pair_scale, mask=inside & (kv_head == 0))
        inverse = tl.div_rn(1.0, pair_scale)
        for g in tl.static_range(GROUP):
            head = (kv_head * GROUP + g) * D
            place = out + (row * (GROUP * KV_HEADS * D) + head)[:, None] + column[None, :]
            tl.store(place, (held[g] * inverse[:, None]).to(tl.float8e4nv), mask=mask)

    # Last, so that the compiler need not keep a load behind a store that might alias it.
    if FUSED and KEEP:
        if PAGED:
            block = tl.load(table + row * L + T, mask=inside, other=0).to(tl.int64)
        else:
            block = row * L + T
        place = pool + (block * (2 * KV_HEADS * D))[:, None] + within
        tl.store(place, keys[T], mask=mask)
        tl.store(place + KV_HEADS * D, values[T], mask=mask)
