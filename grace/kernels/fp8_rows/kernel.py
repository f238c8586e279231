"""The FP8 row kernels in Triton: a row a program, read once and kept in registers.

A row is held as a tuple of equal pieces, so that one of 4,864 columns need not pretend to be 8,192
wide. The pieces are loaded, turned into what is to be stored, and measured; then the row's scale is
known and they are stored.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import triton
import triton.language as tl
from torch import Tensor

from grace.kernels.fp8_rows.reference import LEAST_SCALE, PER_LARGEST
from grace.kernels.tuning import choose

# [columns of one piece, warps]
SHAPES = [[1024, 4], [512, 2], [256, 1], [256, 2], [4096, 32]]
MAX_HELD = 80  # float32 values of one thread; with more, a norm would spill


def quantize_rows_triton(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return values and scales; the contract is `quantize_rows`'. `x` is contiguous."""
    values, scales = _empty(x)

    def run(candidate: list[int]) -> None:
        block, warps = candidate
        quantize_kernel[(x.shape[0],)](
            x, values, scales, DIM=x.shape[1], BLOCK=block, num_warps=warps
        )

    _run_fastest("quantize_rows", x, run)
    return values, scales


def rms_norm_fp8_triton(
    x: Tensor, residual: Tensor | None, weight: Tensor, eps: float, gate_bound: float | None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return values, scales, sum and gated scales; all contiguous.

    Where `residual` is None the sum is `x` itself, where `gate_bound` is, the last is empty.
    """
    values, scales = _empty(x)
    gated_scales = scales.new_empty(0 if gate_bound is None else x.shape[0])
    total = x if residual is None else torch.empty_like(x)

    def run(candidate: list[int]) -> None:
        block, warps = candidate
        rms_norm_fp8_kernel[(x.shape[0],)](
            x, residual, weight, values, scales, total, eps,
            None if gate_bound is None else gated_scales, (gate_bound or 0.0) * PER_LARGEST,
            DIM=x.shape[1], ADD=residual is not None, BLOCK=block, num_warps=warps,
        )  # fmt: skip

    _run_fastest("rms_norm_fp8" if residual is None else "add_rms_norm_fp8", x, run)
    return values, scales, total, gated_scales


def candidates_for(dim: int) -> list[list[int]]:
    """Return shapes `[columns of one piece, warps]` for rows of `dim` columns, the default first.

    Of a row too wide for any, the widest shape holds as much as it can and spills the rest.
    """
    widest = triton.next_power_of_2(dim)
    fitting = []
    for block, warps in SHAPES:
        block = min(block, widest)
        held = block * triton.cdiv(dim, block) / (32 * warps)
        if 2 <= held <= MAX_HELD and [block, warps] not in fitting:
            fitting.append([block, warps])
    return fitting or ([[widest, 1]] if dim <= 32 else SHAPES[-1:])


def _empty(x: Tensor) -> tuple[Tensor, Tensor]:
    values = x.new_empty(x.shape, dtype=torch.float8_e4m3fn)
    return values, x.new_empty(x.shape[0], dtype=torch.float32)


def _run_fastest(operation: str, x: Tensor, run: Callable[[list[int]], None]) -> None:
    rows, dim = x.shape
    if rows == 0:
        return
    shape = (triton.next_power_of_2(rows), dim, str(x.dtype))
    run(choose(operation, shape, candidates_for(dim), run, x.device))


# What a kernel reads of its module must be a constant to the compiler.
_PER_LARGEST = tl.constexpr(PER_LARGEST)
_LEAST_SCALE = tl.constexpr(LEAST_SCALE)
_INFINITY = tl.constexpr(0x7F800000)  # its bits


@triton.jit
def magnitude(value):
    """Return |value| as int32: integers in the order of their values, infinity and NaN on top."""
    return value.to(tl.int32, bitcast=True) & 0x7FFFFFFF


@triton.jit
def scale_of(largest):
    """Return the scale of a row of a largest `magnitude`."""
    scale = largest.to(tl.float32, bitcast=True) * _PER_LARGEST
    scale = tl.where(largest == 0, 1.0, tl.maximum(scale, _LEAST_SCALE))
    return tl.where(largest >= _INFINITY, float("nan"), scale)


@triton.jit
def store_row(
    held, largest, values, scales, row, gated_scales, gate_bound,
    DIM: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Quantise a row held in pieces `[BLOCK]`; `largest` is its largest magnitude."""
    scale = scale_of(largest)
    inverse = tl.div_rn(1.0, scale)  # rounded like the reference's; `/` is not
    tl.store(scales + row, scale)
    squares = tl.zeros([BLOCK], tl.float32)
    for piece in tl.static_range(len(held)):
        column = piece * BLOCK + tl.arange(0, BLOCK)
        value = (held[piece] * inverse).to(tl.float8e4nv)  # to nearest even
        tl.store(values + row * DIM + column, value, mask=column < DIM)
        if gated_scales is not None:
            stored = value.to(tl.float32)
            squares += stored * stored
    if gated_scales is not None:
        total = tl.sum(squares, 0)
        gated = total * scale * scale * gate_bound
        gated = tl.where(gated < _LEAST_SCALE, _LEAST_SCALE, gated)  # NaN stays
        tl.store(gated_scales + row, tl.where(total == 0, 1.0, gated))


@triton.jit
def quantize_kernel(x, values, scales, DIM: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    largest = tl.zeros([BLOCK], tl.int32)
    held = ()
    for start in tl.static_range(0, DIM, BLOCK):
        column = start + tl.arange(0, BLOCK)
        value = tl.load(x + row * DIM + column, mask=column < DIM, other=0.0).to(tl.float32)
        largest = tl.maximum(largest, magnitude(value))
        held = held + (value,)  # noqa: RUF005
    store_row(held, tl.max(largest, 0), values, scales, row, None, 0.0, DIM, BLOCK)


@triton.jit
def rms_norm_fp8_kernel(
    x, residual, weight, values, scales, total, eps, gated_scales, gate_bound,
    DIM: tl.constexpr, ADD: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    squares = tl.zeros([BLOCK], tl.float32)
    held = ()
    gains = ()
    # Everything is asked for before anything is waited for.
    for start in tl.static_range(0, DIM, BLOCK):
        column = start + tl.arange(0, BLOCK)
        place, mask = row * DIM + column, column < DIM
        value = tl.load(x + place, mask=mask, other=0.0).to(tl.float32)
        if ADD:
            added = tl.load(residual + place, mask=mask, other=0.0).to(tl.float32)
            value = (value + added).to(x.dtype.element_ty).to(tl.float32)
        squares += value * value
        held = held + (value,)  # noqa: RUF005
        gains = gains + (tl.load(weight + column, mask=mask, other=0.0),)  # noqa: RUF005
    scale = 1 / tl.sqrt(tl.sum(squares, 0) / DIM + eps)
    largest = tl.zeros([BLOCK], tl.int32)
    normed = ()
    for piece in tl.static_range(len(held)):
        if ADD:
            column = piece * BLOCK + tl.arange(0, BLOCK)
            sums = held[piece].to(x.dtype.element_ty)
            tl.store(total + row * DIM + column, sums, mask=column < DIM)
        value = held[piece] * scale * gains[piece].to(tl.float32)
        largest = tl.maximum(largest, magnitude(value))
        normed = normed + (value,)  # noqa: RUF005
    largest = tl.max(largest, 0)
    store_row(normed, largest, values, scales, row, gated_scales, gate_bound, DIM, BLOCK)
