"""linear in Triton: one persistent kernel of TMA loads and matrix units, with every epilogue.

Each program walks over output tiles; the compiler pipelines loads across tiles (`flatten`). The
tensor maps are kernel arguments, so that nothing is allocated and a CUDA graph keeps them.
"""

from __future__ import annotations

import functools

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from grace.kernels.linear.operands import Operands

DEPTH_BYTES = 128  # of a block of K: the widest row that TMA swizzles
SHARED_BYTES = 227 * 1024
# [rows of a tile, columns, warps, stages, tiles down before one across, parts of the epilogue]
# Those that won somewhere among some twenty: each costs a compilation at a shape's first call.
LARGE = [[128, 256, 8, 3, 8, 1], [128, 256, 8, 4, 8, 2], [128, 256, 8, 4, 8, 4]]
SMALL = [[64, 128, 4, 6, 8, 1], [128, 256, 8, 3, 8, 1], [64, 32, 4, 8, 8, 1]]
SMALL_ROWS = 2048


def triton_candidates(rows: int, swiglu: bool, residual: bool) -> list[list[int]]:
    """Return configurations worth trying for so many rows, of those that fit."""
    return [
        config
        for config in (SMALL if rows <= SMALL_ROWS else LARGE)
        if shared_bytes(config, swiglu, residual) <= SHARED_BYTES
    ]


def shared_bytes(config: list[int], swiglu: bool, residual: bool) -> int:
    """Return about how much shared memory a configuration takes."""
    block_m, block_n, _, stages, _, parts = config
    part = 2 * block_m * block_n // (1 + swiglu) // parts
    return stages * (block_m + block_n) * DEPTH_BYTES + part * (1 + residual) + 1024


def linear_triton(ops: Operands, config: list[int]) -> Tensor:
    """Return `[rows, N]`, or `[rows, N // 2]` with SwiGLU; the contract is `linear`'s.

    All matrices start at a multiple of 16 bytes and have rows of such a multiple.
    """
    block_m, block_n, warps, stages, group, parts = config
    (rows, depth), columns = ops.x.shape, ops.weight.shape[0]
    out = ops.new_output()
    block_k = DEPTH_BYTES // ops.x.element_size()
    part = [block_m, block_n // (1 + ops.swiglu) // parts]
    tiles = triton.cdiv(rows, block_m) * triton.cdiv(columns, block_n)
    linear_kernel[(min(tiles, num_multiprocessors(ops.x.device)),)](
        TensorDescriptor.from_tensor(ops.x, [block_m, block_k]),
        TensorDescriptor.from_tensor(ops.weight, [block_n, block_k]),
        TensorDescriptor.from_tensor(out, part),
        None if ops.residual is None else TensorDescriptor.from_tensor(ops.residual, part),
        ops.bias, ops.x_scales, ops.weight_scales, ops.out_scales, rows, columns, depth,
        BLOCK_M=block_m, BLOCK_N=block_n, BLOCK_K=block_k, GROUP=group, PARTS=parts,
        SWIGLU=ops.swiglu, num_warps=warps, num_stages=stages,
    )  # fmt: skip
    return out


@functools.cache
def num_multiprocessors(device: torch.device) -> int:
    """How many programs run at once."""
    if device.type != "cuda":
        return 3  # interpreted, where a few must walk over many tiles as well
    return torch.cuda.get_device_properties(device).multi_processor_count


# One compilation for all numbers of rows: a bucket, or one row, must not meet a new one.
@triton.jit(do_not_specialize=["rows"])
def linear_kernel(
    x, weight, out, residual, bias, x_scales, weight_scales, out_scales, rows, columns, depth,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP: tl.constexpr,
    PARTS: tl.constexpr, SWIGLU: tl.constexpr,
):  # fmt: skip
    tiles_m = tl.cdiv(rows, BLOCK_M)
    tiles_n = tl.cdiv(columns, BLOCK_N)
    steps = tl.cdiv(depth, BLOCK_K)
    for tile in tl.range(tl.program_id(0), tiles_m * tiles_n, tl.num_programs(0), flatten=True):
        # Groups of GROUP tiles down: what runs at once reads few rows of x and of the weight.
        first_m = tile // (GROUP * tiles_n) * GROUP
        group_m = min(tiles_m - first_m, GROUP)
        m = (first_m + tile % (GROUP * tiles_n) % group_m) * BLOCK_M
        n = tile % (GROUP * tiles_n) // group_m * BLOCK_N
        total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
        for step in range(steps):
            left = x.load([m, step * BLOCK_K])
            right = weight.load([n, step * BLOCK_K])
            total = tl.dot(left, right.T, total)
        total = scaled(total, m, n, bias, x_scales, weight_scales, rows, columns, BLOCK_M, BLOCK_N)
        if SWIGLU:
            gate, up = tl.split(tl.reshape(total, (BLOCK_M, BLOCK_N // 2, 2)))
            result = gate / (1 + tl.exp(-gate)) * up
            if out_scales is not None:
                row = m + tl.arange(0, BLOCK_M)
                result *= (1 / tl.load(out_scales + row, mask=row < rows, other=1.0))[:, None]
            store(result, out, residual, m, n // 2, BLOCK_M, BLOCK_N // 2, PARTS)
        else:
            store(total, out, residual, m, n, BLOCK_M, BLOCK_N, PARTS)


@triton.jit
def scaled(
    total, m, n, bias, x_scales, weight_scales, rows, columns,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """The tile times its rows' and columns' scales, plus the bias, where there are any."""
    row = m + tl.arange(0, BLOCK_M)
    column = n + tl.arange(0, BLOCK_N)
    if x_scales is not None:
        total *= tl.load(x_scales + row, mask=row < rows, other=0.0)[:, None]
        total *= tl.load(weight_scales + column, mask=column < columns, other=0.0)[None, :]
    if bias is not None:
        total += tl.load(bias + column, mask=column < columns, other=0.0).to(tl.float32)[None, :]
    return total


@triton.jit
def store(
    total, out, residual, m, n, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, PARTS: tl.constexpr
):
    """Write a tile in parts, so that one part's buffer serves all."""
    if PARTS == 1:
        if residual is not None:
            total += residual.load([m, n]).to(tl.float32)
        out.store([m, n], total.to(out.dtype))
    else:
        halves = tl.permute(tl.reshape(total, (BLOCK_M, 2, BLOCK_N // 2)), (0, 2, 1))
        left, right = tl.split(halves)
        store(left, out, residual, m, n, BLOCK_M, BLOCK_N // 2, PARTS // 2)
        store(right, out, residual, m, n + BLOCK_N // 2, BLOCK_M, BLOCK_N // 2, PARTS // 2)
