"""The specification of linear and swiglu_linear, in plain torch on any device."""

from __future__ import annotations

import torch
from torch import Tensor

from grace.kernels.linear.operands import Operands
from grace.kernels.swiglu.reference import swiglu_reference


def linear_reference(ops: Operands) -> Tensor:
    """Return `[rows, N]`, or `[rows, N // 2]` with SwiGLU; the contract is `linear`'s."""
    wide = torch.promote_types(ops.dtype, torch.float32)
    out = ops.x.to(wide) @ ops.weight.to(wide).T
    if ops.x_scales is not None:
        out = out * ops.x_scales[:, None] * ops.weight_scales
    for term in (ops.bias, ops.residual):
        if term is not None:
            out = out + term.to(wide)
    return (swiglu_reference(out, interleaved=True) if ops.swiglu else out).to(ops.dtype)
