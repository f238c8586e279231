"""rms_norm and add_rms_norm in Triton: a few rows a program, each read once."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from grace.kernels.tuning import choose

# [rows of one program, warps]; the first is the default
CANDIDATES = [[1, 4], [1, 1], [1, 8], [2, 4]]


def rms_norm_triton(
    x: Tensor, residual: Tensor | None, weight: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    """Return normed and sum, where `residual` is None normed twice; inputs are contiguous."""
    dim = x.shape[-1]
    num_rows = x.numel() // dim
    normed = torch.empty_like(x)
    total = normed if residual is None else torch.empty_like(x)
    if num_rows == 0:
        return normed, total

    def run(candidate: list[int]) -> None:
        rows, warps = candidate
        rms_norm_kernel[(triton.cdiv(num_rows, rows),)](
            x, residual, weight, normed, total, num_rows, eps,
            DIM=dim, WIDE_DIM=triton.next_power_of_2(dim), ROWS=rows, ADD=residual is not None,
            num_warps=warps,
        )  # fmt: skip

    shape = (triton.next_power_of_2(num_rows), dim, str(x.dtype), residual is not None)
    run(choose("rms_norm", shape, CANDIDATES, run, x.device))
    return normed, total


@triton.jit
def rms_norm_kernel(
    x, residual, weight, normed, total, num_rows, eps,
    DIM: tl.constexpr, WIDE_DIM: tl.constexpr, ROWS: tl.constexpr, ADD: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, WIDE_DIM)
    place = (row * DIM)[:, None] + column[None, :]
    mask = (row < num_rows)[:, None] & (column < DIM)[None, :]
    value = tl.load(x + place, mask=mask, other=0.0)
    if ADD:
        added = value.to(tl.float32) + tl.load(residual + place, mask=mask, other=0.0).to(
            tl.float32
        )
        value = added.to(x.dtype.element_ty)
        tl.store(total + place, value, mask=mask)
    value = value.to(tl.float32)
    scale = 1 / tl.sqrt(tl.sum(value * value, 1) / DIM + eps)
    gain = tl.load(weight + column, mask=column < DIM, other=0.0).to(tl.float32)
    result = value * scale[:, None] * gain[None, :]
    tl.store(normed + place, result.to(x.dtype.element_ty), mask=mask)
