"""unit_norm in Triton; backward reads the input again and keeps no sums."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

ENTRIES = 2048
"""Of a program's rows together; torch's kernel gives each row a block, however narrow."""


def unit_norm_triton(x: Tensor, eps: float) -> Tensor:
    """Return `[T, d]`; the contract is `unit_norm`'s."""
    return _UnitNorm.apply(x.contiguous(), eps)


class _UnitNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, eps):
        ctx.save_for_backward(x)
        ctx.eps = eps
        return _run(x, None, eps)

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return _run(x, gradient.contiguous(), ctx.eps), None


def _run(x: Tensor, gradient: Tensor | None, eps: float) -> Tensor:
    out = torch.empty_like(x)
    rows, dim = x.shape
    wide = triton.next_power_of_2(dim)
    together = max(ENTRIES // wide, 1)
    unit_norm_kernel[(triton.cdiv(rows, together),)](
        x, gradient, out, rows, eps, DIM=dim, WIDE=wide, ROWS=together,
        BACKWARD=gradient is not None, num_warps=4,
    )  # fmt: skip
    return out


@triton.jit(do_not_specialize=["rows"])
def unit_norm_kernel(
    x, gradient, out, rows, eps,
    DIM: tl.constexpr, WIDE: tl.constexpr, ROWS: tl.constexpr, BACKWARD: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, WIDE)
    place = (row * DIM)[:, None] + column[None, :]
    mask = (row < rows)[:, None] & (column < DIM)[None, :]
    value = tl.load(x + place, mask=mask, other=0.0).to(tl.float32)
    scale = 1 / tl.sqrt(tl.sum(value * value, 1) / DIM + eps)
    result = value * scale[:, None]
    if BACKWARD:
        grown = tl.load(gradient + place, mask=mask, other=0.0).to(tl.float32)
        along = tl.sum(grown * result, 1) / DIM
        result = (grown - result * along[:, None]) * scale[:, None]
    tl.store(out + place, result.to(out.dtype.element_ty), mask=mask)
