"""row_attention in Triton: a program holds all keys of a row and head, so softmax is one pass.

Short rows are taken several at a time, hidden from each other, to fill a tile. Backward computes
the shares again. The bias' gradient is written per row and then summed, so its order is fixed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

if TYPE_CHECKING:
    from grace.kernels.row_attention import Rows

TILE = 64
"""Queries, and keys, up to which short rows are taken together."""
QUERIES = 32
"""Of a row at a time: scores and their gradients of more would not fit the registers. With more
keys than TILE, half as many (docs/t5.md)."""
CHANCES = 1 << 24
"""Equally probable draws of dropout."""


def row_attention_triton(
    x: Tensor,
    memory: Tensor | None,
    bias: Tensor | None,
    pieces: Sequence[Rows],
    num_heads: int,
    dropout: float,
) -> Tensor:
    """Return `[T, H * D]`; the contract is `row_attention`'s."""
    seed = None
    if dropout:
        seed = torch.randint(-(2**31), 2**31, (2,), dtype=torch.int32, device=x.device)
    x, memory, bias = (
        None if tensor is None else tensor.contiguous() for tensor in (x, memory, bias)
    )
    return _RowAttention.apply(x, memory, bias, seed, tuple(pieces), num_heads, dropout)


class _RowAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, memory, bias, seed, pieces, num_heads, dropout):
        ctx.save_for_backward(x, memory, bias, seed)
        ctx.settings = pieces, num_heads, dropout
        query, key, value = _parts(x, memory)
        out = torch.empty_like(query, memory_format=torch.contiguous_format)
        for launch in _launches(query, bias, seed, *ctx.settings):
            attend_rows[launch.grid](
                query, key, value, bias, launch.keys, out, seed, *launch.numbers,
                query.stride(0), key.stride(0), out.stride(0), *launch.dropout,
                **launch.constants,
            )  # fmt: skip
        return out

    @staticmethod
    def backward(ctx, gradient):
        x, memory, bias, seed = ctx.saved_tensors
        pieces, num_heads, _ = ctx.settings
        query, key, value = _parts(x, memory)
        gradient = gradient.contiguous()
        grown_x = torch.empty_like(x)
        grown_memory = None if memory is None else torch.empty_like(memory)
        grown = _parts(grown_x, grown_memory)
        grown_bias = None if bias is None else torch.zeros_like(bias, dtype=torch.float32)
        for piece, launch in zip(pieces, _launches(query, bias, seed, *ctx.settings), strict=True):
            rows, length = piece.keys.shape
            scores = None
            if bias is not None:
                scores = x.new_empty(rows, num_heads, piece.queries, length)
            attend_rows_backward[launch.grid](
                query, key, value, bias, launch.keys, gradient, *grown, scores, seed,
                *launch.numbers, query.stride(0), key.stride(0), gradient.stride(0),
                *launch.dropout, **launch.constants,
            )  # fmt: skip
            if grown_bias is not None:
                part = grown_bias[:, : piece.queries, :length]
                part += scores.sum(0, dtype=torch.float32)
        if grown_bias is not None:
            grown_bias = grown_bias.to(bias.dtype)
        return grown_x, grown_memory, grown_bias, None, None, None, None


def _parts(x: Tensor | None, memory: Tensor | None) -> tuple[Tensor, ...]:
    """Return queries, keys and values, views `[T or S, H * D]`."""
    return x.chunk(3, 1) if memory is None else (x, *memory.chunk(2, 1))


class _Launch(NamedTuple):
    grid: tuple[int, int]
    keys: Tensor
    numbers: tuple[int, ...]
    dropout: tuple[int, float]
    constants: dict[str, int | bool]


def _launches(
    query: Tensor,
    bias: Tensor | None,
    seed: Tensor | None,
    pieces: Sequence[Rows],
    num_heads: int,
    dropout: float,
) -> Iterator[_Launch]:
    first_query = first_key = 0
    for salt, (queries, keys) in enumerate(pieces):
        rows, length = keys.shape
        group = max(TILE // max(queries, length), 1)
        block = max(triton.next_power_of_2(group * length), 16)
        most = QUERIES if block <= TILE else QUERIES // 2
        tile = min(most, max(triton.next_power_of_2(group * queries), 16))
        strides = (0, 0) if bias is None else bias.stride()[:2]
        yield _Launch(
            (triton.cdiv(rows, group), num_heads),
            keys.contiguous().view(torch.uint8),
            (first_query, first_key, rows, queries, length, group, salt, *strides),
            (round(dropout * CHANCES), 1 / (1 - dropout)),
            {
                "D": query.shape[1] // num_heads, "KEYS": block,
                "QUERIES": tile, "TILES": triton.cdiv(group * queries, tile),
                "BIAS": bias is not None, "DROPOUT": seed is not None,
                "num_warps": 4, "num_stages": 1,
            },
        )  # fmt: skip
        first_query, first_key = first_query + rows * queries, first_key + keys.numel()


# What differs from piece to piece: one compiled kernel serves all lengths of a tile.
PER_PIECE = [
    "first_query", "first_key", "rows", "n", "m", "group", "salt", "bias_head", "bias_query",
    "threshold",
]  # fmt: skip


@triton.jit
def program_of(rows, n, group, D: tl.constexpr):
    """Return a program's head, first row, number of rows, the head's columns, and its first draw.

    Forward and backward must agree on the draws of dropout.
    """
    head = tl.program_id(1)
    first = tl.program_id(0) * group
    held = tl.minimum(group, rows - first)
    number = (tl.program_id(0) * tl.num_programs(1) + head) * group * n
    return head, first, held, head * D + tl.arange(0, D), number


@triton.jit
def keys_of(
    key, value, keys, first_key, first, held, m, column, key_stride, KEYS: tl.constexpr
):  # fmt: skip
    """Return a program's keys: their numbers, which there are, where they lie, and what they say.

    Places within the program's rows are small; only where these begin may need 64 bits.
    """
    j = tl.arange(0, KEYS)
    inside = j < held * m
    first_place = (first_key + first * m).to(tl.int64) * key_stride
    key_place = j[:, None] * key_stride + column[None, :]
    k = tl.load(key + first_place + key_place, mask=inside[:, None], other=0.0)
    v = tl.load(value + first_place + key_place, mask=inside[:, None], other=0.0)
    counted = tl.load(keys + first * m + j, mask=inside, other=0) != 0
    return j, inside, first_place, key_place, k, v, counted


@triton.jit
def shares_of(
    q, k, i, j, counted, bias, seed, head, n, m, salt, bias_head, bias_query, number,
    threshold, rescale, KEYS: tl.constexpr, BIAS: tl.constexpr, DROPOUT: tl.constexpr,
):  # fmt: skip
    """Return the shares `[queries, keys]`, and what dropout multiplies each of them by."""
    scores = tl.dot(q, tl.trans(k), input_precision="ieee")
    seen = counted[None, :] & ((i // n)[:, None] == (j // m)[None, :])
    if BIAS:
        place = head * bias_head + (i % n)[:, None] * bias_query + (j % m)[None, :]
        scores += tl.load(bias + place, mask=seen, other=0.0).to(tl.float32)
    scores = tl.where(seen, scores, -1e30)
    shares = tl.exp(scores - tl.max(scores, 1)[:, None])
    shares = shares / tl.sum(shares, 1)[:, None]
    factor = tl.full(shares.shape, 1.0, tl.float32)
    if DROPOUT:
        # A hash of the place and of 64 drawn bits; as even as it must be, and cheap.
        low = tl.load(seed).to(tl.uint32, bitcast=True)
        high = tl.load(seed + 1).to(tl.uint32, bitcast=True)
        chance = ((number + i)[:, None] * KEYS + j[None, :]).to(tl.uint32)
        chance = chance * 0x9E3779B1 + (low ^ (salt.to(tl.uint32) * 0x7FEB352D))
        chance = (chance ^ (chance >> 16)) * 0x85EBCA6B
        chance = ((chance ^ (chance >> 13)) ^ high) * 0xC2B2AE35
        chance = (chance ^ (chance >> 15)) * 0x2C1B3C6D
        chance = chance ^ (chance >> 16)
        factor = tl.where((chance >> 8).to(tl.int32) >= threshold, rescale, 0.0)
    return shares, factor


@triton.jit(do_not_specialize=PER_PIECE)
def attend_rows(
    query, key, value, bias, keys, out, seed,
    first_query, first_key, rows, n, m, group, salt, bias_head, bias_query,
    query_stride, key_stride, out_stride, threshold, rescale,
    D: tl.constexpr, KEYS: tl.constexpr, QUERIES: tl.constexpr, TILES: tl.constexpr,
    BIAS: tl.constexpr, DROPOUT: tl.constexpr,
):  # fmt: skip
    head, first, held, column, number = program_of(rows, n, group, D)
    first_token = (first_query + first * n).to(tl.int64)
    j, _inside, _first_place, _key_place, k, v, counted = keys_of(
        key, value, keys, first_key, first, held, m, column, key_stride, KEYS
    )
    for tile in range(TILES):
        i = tile * QUERIES + tl.arange(0, QUERIES)
        real = (i < held * n)[:, None]
        query_place = i[:, None] * query_stride + column[None, :]
        q = tl.load(query + first_token * query_stride + query_place, mask=real, other=0.0)
        shares, factor = shares_of(
            q, k, i, j, counted, bias, seed, head, n, m, salt, bias_head, bias_query, number,
            threshold, rescale, KEYS, BIAS, DROPOUT,
        )  # fmt: skip
        mixed = tl.dot((shares * factor).to(v.dtype), v, input_precision="ieee")
        out_place = i[:, None] * out_stride + column[None, :]
        mixed = mixed.to(out.dtype.element_ty)
        tl.store(out + first_token * out_stride + out_place, mixed, mask=real)


@triton.jit(do_not_specialize=PER_PIECE)
def attend_rows_backward(
    query, key, value, bias, keys, gradient, grown_query, grown_key, grown_value, grown_bias, seed,
    first_query, first_key, rows, n, m, group, salt, bias_head, bias_query,
    query_stride, key_stride, out_stride, threshold, rescale,
    D: tl.constexpr, KEYS: tl.constexpr, QUERIES: tl.constexpr, TILES: tl.constexpr,
    BIAS: tl.constexpr, DROPOUT: tl.constexpr,
):  # fmt: skip
    head, first, held, column, number = program_of(rows, n, group, D)
    first_token = (first_query + first * n).to(tl.int64)
    j, inside, first_place, key_place, k, v, counted = keys_of(
        key, value, keys, first_key, first, held, m, column, key_stride, KEYS
    )
    grown_k = tl.zeros((KEYS, D), tl.float32)
    grown_v = tl.zeros((KEYS, D), tl.float32)
    for tile in range(TILES):
        i = tile * QUERIES + tl.arange(0, QUERIES)
        real = (i < held * n)[:, None]
        query_place = i[:, None] * query_stride + column[None, :]
        q = tl.load(query + first_token * query_stride + query_place, mask=real, other=0.0)
        out_place = i[:, None] * out_stride + column[None, :]
        g = tl.load(gradient + first_token * out_stride + out_place, mask=real, other=0.0)
        shares, factor = shares_of(
            q, k, i, j, counted, bias, seed, head, n, m, salt, bias_head, bias_query, number,
            threshold, rescale, KEYS, BIAS, DROPOUT,
        )  # fmt: skip
        left = (shares * factor).to(g.dtype)
        grown_v += tl.dot(tl.trans(left), g, input_precision="ieee")
        grown = tl.dot(g, tl.trans(v), input_precision="ieee") * factor
        grown = shares * (grown - tl.sum(shares * grown, 1)[:, None])
        if BIAS:
            first_score = (first.to(tl.int64) * tl.num_programs(1) + head) * n * m
            place = (i // n * tl.num_programs(1) * n + i % n)[:, None] * m + (j % m)[None, :]
            own = real & inside[None, :] & ((i // n)[:, None] == (j // m)[None, :])
            scores = grown.to(grown_bias.dtype.element_ty)
            tl.store(grown_bias + first_score + place, scores, mask=own)
        grown = grown.to(k.dtype)
        grown_k += tl.dot(tl.trans(grown), q, input_precision="ieee")
        grown_q = tl.dot(grown, k, input_precision="ieee")
        place_q = first_token * query_stride + query_place
        tl.store(grown_query + place_q, grown_q.to(q.dtype), mask=real)
    tl.store(grown_key + first_place + key_place, grown_k.to(k.dtype), mask=inside[:, None])
    tl.store(grown_value + first_place + key_place, grown_v.to(v.dtype), mask=inside[:, None])
