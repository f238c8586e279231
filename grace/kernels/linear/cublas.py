"""linear by torch's own matrix products: cuBLAS on a GPU."""

from __future__ import annotations

import torch
from torch import Tensor

from grace.kernels.linear.operands import Operands
from grace.kernels.swiglu import swiglu


def linear_cublas(ops: Operands) -> Tensor:
    """Return `[rows, N]`, or `[rows, N // 2]` with SwiGLU; the contract is `linear`'s."""
    x, weight, residual = ops.x, ops.weight.T, ops.residual
    dtype = ops.dtype if ops.out_scales is None else torch.bfloat16
    if ops.x_scales is not None:
        out = torch._scaled_mm(
            x, weight, ops.x_scales[:, None], ops.weight_scales[None, :],
            bias=ops.bias, out_dtype=dtype, use_fast_accum=True,
        )  # fmt: skip
    elif ops.bias is not None:
        out = torch.addmm(ops.bias, x, weight)
    elif residual is not None:
        return torch.addmm(residual, x, weight)
    else:
        out = torch.mm(x, weight)
    if residual is not None:
        out.add_(residual)
    out = swiglu(out, interleaved=True) if ops.swiglu else out
    return out if ops.out_scales is None else (out / ops.out_scales[:, None]).to(ops.dtype)
