"""linear in Gluon: a persistent kernel whose warps have roles, for Hopper's matrix units.

One warp loads blocks by TMA into a ring of stages; two groups of four warps multiply. They share
the work in one of three ways:

- turns: they take tiles in turn, so that one multiplies while the other writes its tile.
- rows: each has half a tile's rows, so that a block of the weight serves both; the second lags a
  few steps behind, so that their writing falls apart.
- depth: each sums over half of K, and the first adds both sums up; for few rows.
"""

from __future__ import annotations

import functools

import torch
import triton
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from grace.kernels.linear.kernel import DEPTH_BYTES, SHARED_BYTES, num_multiprocessors
from grace.kernels.linear.operands import Operands

TURNS, ROWS, DEPTH = gl.constexpr(0), gl.constexpr(1), gl.constexpr(2)  # ways to share
# [rows of a group's tile, columns, stages, tiles down before one across, parts of the epilogue,
#  way to share, steps of lag]
LARGE = [
    [128, 128, 6, 16, 2, 0, 0], [128, 128, 5, 8, 1, 0, 0], [64, 256, 4, 8, 2, 1, 1],
    [64, 256, 4, 8, 1, 1, 1],
]  # fmt: skip
SMALL = [[128, 128, 5, 8, 1, 0, 0], [64, 128, 7, 8, 1, 0, 0], [64, 64, 5, 8, 1, 2, 0]]
SMALL_ROWS = 2048
GL_DTYPES = {
    torch.bfloat16: gl.bfloat16,
    torch.float16: gl.float16,
    torch.float8_e4m3fn: gl.float8e4nv,
}


def specialized_candidates(rows: int, swiglu: bool, residual: bool) -> list[list[int]]:
    """Return configurations worth trying for so many rows, of those that fit."""
    return [
        config
        for config in (SMALL if rows <= SMALL_ROWS else LARGE)
        if shared_bytes(config, swiglu) <= SHARED_BYTES
        and not (residual and config[4] > 1)  # it is fetched into the epilogue's one buffer
    ]


def shared_bytes(config: list[int], swiglu: bool) -> int:
    """Return about how much shared memory a configuration takes."""
    height, block_n, stages, _, parts, way, _ = config
    stage = (height * (1 + (way != 0)) + block_n * (1 + (way == 2))) * DEPTH_BYTES
    part = 2 * height * block_n // (1 + swiglu) // parts
    return stages * stage + 2 * part + (way == 2) * 4 * height * block_n + 1024


def linear_specialized(ops: Operands, config: list[int]) -> Tensor:
    """Return `[rows, N]`, or `[rows, N // 2]` with SwiGLU; the contract is `linear`'s.

    All matrices start at a multiple of 16 bytes and have rows of such a multiple.
    """
    height, block_n, stages, group, parts, way, lag = config
    (rows, depth), columns = ops.x.shape, ops.weight.shape[0]
    out = ops.new_output()
    block_k = DEPTH_BYTES // ops.x.element_size()
    part = [height, block_n // (1 + ops.swiglu) // parts]
    tiles = triton.cdiv(rows, height * (1 + (way == 1))) * triton.cdiv(columns, block_n)
    specialized_kernel[(min(tiles, num_multiprocessors(ops.x.device)),)](
        descriptor(ops.x, [height, block_k]),
        descriptor(ops.weight, [block_n, block_k]),
        descriptor(out, part),
        None if ops.residual is None else descriptor(ops.residual, part),
        ops.bias, ops.x_scales, ops.weight_scales, ops.out_scales, rows, columns, depth,
        HEIGHT=height, BLOCK_N=block_n, BLOCK_K=block_k, STAGES=stages, GROUP=group, PARTS=parts,
        WAY=way, LAG=lag, SWIGLU=ops.swiglu, num_warps=4,
    )  # fmt: skip
    return out


def descriptor(matrix: Tensor, block: list[int]) -> TensorDescriptor:
    """Return a tensor map whose blocks lie in shared memory as the matrix units read them."""
    return TensorDescriptor.from_tensor(matrix, block, layout_of(tuple(block), matrix.dtype))


@functools.cache
def layout_of(block: tuple[int, int], dtype: torch.dtype) -> gl.NVMMASharedLayout:
    """Return the widest swizzle of a block."""
    return gl.NVMMASharedLayout.get_default_for(block, GL_DTYPES[dtype])


@gluon.jit(do_not_specialize=["rows"])  # one compilation for all numbers of them
def specialized_kernel(
    x, weight, out, residual, bias, x_scales, weight_scales, out_scales, rows, columns, depth,
    HEIGHT: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr, STAGES: gl.constexpr,
    GROUP: gl.constexpr, PARTS: gl.constexpr, WAY: gl.constexpr, LAG: gl.constexpr,
    SWIGLU: gl.constexpr,
):  # fmt: skip
    XS: gl.constexpr = 1 + (WAY != TURNS)  # blocks of x in a stage
    WS: gl.constexpr = 1 + (WAY == DEPTH)
    left = gl.allocate_shared_memory(x.dtype, [STAGES * XS, HEIGHT, BLOCK_K], x.layout)
    right = gl.allocate_shared_memory(weight.dtype, [STAGES * WS, BLOCK_N, BLOCK_K], weight.layout)
    parts = gl.allocate_shared_memory(out.dtype, [2] + out.block_type.shape, out.layout)  # noqa: RUF005
    if WAY == DEPTH:
        sums_layout: gl.constexpr = gl.NVMMASharedLayout(128, 32)
        sums = gl.allocate_shared_memory(gl.float32, [HEIGHT, BLOCK_N], sums_layout)
    else:
        sums = parts  # not used
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for stage in gl.static_range(STAGES):
        mbarrier.init(full.index(stage), count=1)
        mbarrier.init(empty.index(stage), count=XS)
    # For each group: whether its residual has come, and whether it may go on.
    come = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    may = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    for which in gl.static_range(2):
        mbarrier.init(come.index(which), count=1)
        mbarrier.init(may.index(which), count=1)
    fence_async_shared()
    buffers, barriers = (left, right, parts, sums), (full, empty, come, may)
    sizes, vectors = (rows, columns, depth), (bias, x_scales, weight_scales, out_scales)
    gl.warp_specialize(
        [
            (multiply, (0, buffers, barriers, out, residual, vectors, sizes, HEIGHT, BLOCK_N,
                        BLOCK_K, STAGES, GROUP, PARTS, WAY, LAG, SWIGLU)),
            (multiply, (1, buffers, barriers, out, residual, vectors, sizes, HEIGHT, BLOCK_N,
                        BLOCK_K, STAGES, GROUP, PARTS, WAY, LAG, SWIGLU)),
            (load, (buffers, barriers, x, weight, sizes, HEIGHT, BLOCK_N, BLOCK_K, STAGES, GROUP,
                    WAY)),
        ],
        [4, 1],
        [240, 24],
    )  # fmt: skip


@gluon.jit
def load(
    buffers, barriers, x, weight, sizes,
    HEIGHT: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr, STAGES: gl.constexpr,
    GROUP: gl.constexpr, WAY: gl.constexpr,
):  # fmt: skip
    """Fill the ring with the blocks of all tiles of this program, in the order of their use."""
    left, right, _, _ = buffers
    full, empty, _, _ = barriers
    rows, columns, depth = sizes
    TALL: gl.constexpr = HEIGHT * (1 + (WAY == ROWS))
    XS: gl.constexpr = 1 + (WAY != TURNS)
    WS: gl.constexpr = 1 + (WAY == DEPTH)
    tiles = gl.cdiv(rows, TALL) * gl.cdiv(columns, BLOCK_N)
    turn = 0
    for tile in range(gl.program_id(0), tiles, gl.num_programs(0)):
        m, n = place(tile, rows, columns, TALL, BLOCK_N, GROUP)
        for k in range(0, depth, BLOCK_K * WS):
            stage = turn % STAGES
            ready = full.index(stage)
            mbarrier.wait(empty.index(stage), (turn // STAGES & 1) ^ 1)
            mbarrier.expect(ready, x.block_type.nbytes * XS + weight.block_type.nbytes * WS)
            for i in gl.static_range(WS):
                tma.async_copy_global_to_shared(
                    weight, [n, k + i * BLOCK_K], ready, right.index(stage * WS + i)
                )
            for i in gl.static_range(XS):
                corner = [m + i * (TALL - HEIGHT), k + i * BLOCK_K * (WS - 1)]
                tma.async_copy_global_to_shared(x, corner, ready, left.index(stage * XS + i))
            turn += 1


@gluon.jit
def multiply(
    WHICH: gl.constexpr, buffers, barriers, out, residual, vectors, sizes,
    HEIGHT: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr, STAGES: gl.constexpr,
    GROUP: gl.constexpr, PARTS: gl.constexpr, WAY: gl.constexpr, LAG: gl.constexpr,
    SWIGLU: gl.constexpr,
):  # fmt: skip
    """Compute the tiles, or the shares of tiles, of one group of four warps, and write them."""
    left, right, parts, sums = buffers
    full, empty, come, may = barriers
    rows, columns, depth = sizes
    bias, x_scales, weight_scales, out_scales = vectors
    TALL: gl.constexpr = HEIGHT * (1 + (WAY == ROWS))
    XS: gl.constexpr = 1 + (WAY != TURNS)
    WS: gl.constexpr = 1 + (WAY == DEPTH)
    WRITES: gl.constexpr = WAY != DEPTH or WHICH == 0
    depth_bits: gl.constexpr = 256 // left.dtype.primitive_bitwidth
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_N, depth_bits])
    part = parts.index(WHICH)
    tiles = gl.cdiv(rows, TALL) * gl.cdiv(columns, BLOCK_N)
    steps = gl.cdiv(depth, BLOCK_K * WS)
    first, stride, turn, skipped = gl.program_id(0), gl.num_programs(0), 0, 0
    if WAY == TURNS:  # every second tile, and so every second run of `steps` turns of the ring
        first += WHICH * stride
        stride *= 2
        turn += WHICH * steps
        skipped += steps
    if WAY == ROWS and LAG > 0 and WHICH == 1:
        mbarrier.wait(may.index(1), 0)
    phase = 0  # of the barriers that are used once a tile
    for tile in range(first, tiles, stride):
        m, n = place(tile, rows, columns, TALL, BLOCK_N, GROUP)
        m += WHICH * (TALL - HEIGHT)
        if WAY == TURNS:  # before its turn, a stage's phase could be taken for one two later
            mbarrier.wait(may.index(WHICH), phase ^ (1 - WHICH))
        total = gl.zeros((HEIGHT, BLOCK_N), gl.float32, layout)
        for step in range(steps):
            stage = turn % STAGES
            mbarrier.wait(full.index(stage), turn // STAGES & 1)
            total = warpgroup_mma(
                left.index(stage * XS + WHICH * (XS - 1)),
                right.index(stage * WS + WHICH * (WS - 1)).permute((1, 0)),
                total, use_acc=step > 0, is_async=True,
            )  # fmt: skip
            total = warpgroup_mma_wait(1, (total,))
            # The one before has been read.
            mbarrier.arrive(empty.index((turn + STAGES - 1) % STAGES), pred=step > 0)
            if residual is not None and WRITES:  # noqa: SIM102 (step is known when it runs only)
                if step == 0:
                    tma.store_wait(0)
                    mbarrier.expect(come.index(WHICH), residual.block_type.nbytes)
                    tma.async_copy_global_to_shared(residual, [m, n], come.index(WHICH), part)
            if WAY == ROWS and LAG > 0 and WHICH == 0:
                lagged = (tile == first) & (step == min(LAG, steps - 1))
                mbarrier.arrive(may.index(1), pred=lagged)
            turn += 1
        if WAY == TURNS:
            mbarrier.arrive(may.index(1 - WHICH))
        if x_scales is not None:  # they come while the last step runs
            row = m + gl.arange(0, HEIGHT, gl.SliceLayout(1, layout))
            column = n + gl.arange(0, BLOCK_N, gl.SliceLayout(0, layout))
            x_scale = gl.load(x_scales + row, mask=row < rows, other=0.0)
            weight_scale = gl.load(weight_scales + column, mask=column < columns, other=0.0)
        total = warpgroup_mma_wait(0, (total,))
        mbarrier.arrive(empty.index((turn + STAGES - 1) % STAGES))
        turn += skipped
        if WAY == DEPTH:
            if WHICH == 1:
                mbarrier.wait(may.index(1), phase ^ 1)
                sums.store(total)
                mbarrier.arrive(may.index(0))
            else:
                mbarrier.wait(may.index(0), phase)
                total += sums.load(layout)
                mbarrier.arrive(may.index(1))
        if WRITES:
            if x_scales is not None:
                total = total * gl.expand_dims(x_scale, 1) * gl.expand_dims(weight_scale, 0)
            if bias is not None:
                column = n + gl.arange(0, BLOCK_N, gl.SliceLayout(0, layout))
                added = gl.load(bias + column, mask=column < columns, other=0.0).to(gl.float32)
                total += gl.expand_dims(added, 0)
            if residual is not None:
                mbarrier.wait(come.index(WHICH), phase)
                total += part.load(layout).to(gl.float32)
            if SWIGLU:
                gate, up = total.reshape([HEIGHT, BLOCK_N // 2, 2]).split()
                gated = gate / (1 + gl.exp(-gate)) * up
                if out_scales is not None:
                    row = m + gl.arange(0, HEIGHT, gl.SliceLayout(1, gated.type.layout))
                    scale = gl.load(out_scales + row, mask=row < rows, other=1.0)
                    gated *= gl.expand_dims(1 / scale, 1)
                gated = gated.to(out.dtype)
                # Neighbours into one thread again, for wide stores.
                halved: gl.constexpr = gl.NVMMADistributedLayout(
                    [3, 0], [4, 1], [16, BLOCK_N // 2, depth_bits]
                )
                store(gl.convert_layout(gated, halved), part, out, m, n // 2, PARTS)
            else:
                store(total, part, out, m, n, PARTS)
        phase ^= 1
    tma.store_wait(0)


@gluon.jit
def store(total, part, out, m, n, PARTS: gl.constexpr):
    """Write a tile in parts, so that one part's buffer serves all."""
    if PARTS == 1:
        rounded = total.to(out.dtype)
        tma.store_wait(0)
        part.store(rounded)
        fence_async_shared()
        tma.async_copy_shared_to_global(out, [m, n], part)
    else:
        HALF: gl.constexpr = total.shape[1] // 2
        near, far = total.reshape([total.shape[0], 2, HALF]).permute((0, 2, 1)).split()
        store(near, part, out, m, n, PARTS // 2)
        store(far, part, out, m, n + HALF, PARTS // 2)


@gluon.jit
def place(tile, rows, columns, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, GROUP: gl.constexpr):
    """First row and column of a tile: groups of GROUP tiles down, as in Triton's kernel."""
    tiles_m = gl.cdiv(rows, BLOCK_M)
    tiles_n = gl.cdiv(columns, BLOCK_N)
    first_m = tile // (GROUP * tiles_n) * GROUP
    group_m = min(tiles_m - first_m, GROUP)
    m = first_m + tile % (GROUP * tiles_n) % group_m
    return m * BLOCK_M, tile % (GROUP * tiles_n) // group_m * BLOCK_N
