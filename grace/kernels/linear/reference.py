"""The specification of linear and swiglu_linear, in plain torch on any device."""

from __future__ import annotations

import torch
from torch import Tensor

from grace.kernels.linear.operands import Operands
from grace.kernels.swiglu.reference import swiglu_reference


def linear_reference(ops: Operands) -> Tensor:
    """Return `[rows, N]`, or `[rows, N // 2]` with SwiGLU; the contract is `linear`'s."""
    wide = torch.float64 if ops.x.dtype == torch.float64 else torch.float32
    out = ops.x.to(wide) @ ops.weight.to(wide).T
    if ops.x_scales is not None:
        out = out * ops.x_scales[:, None] * ops.weight_scales
    for term in (ops.bias, ops.residual):
        if term is not None:
            out = out + term.to(wide)
    out = swiglu_reference(out, interleaved=True) if ops.swiglu else out
    return (out if ops.out_scales is None else out / ops.out_scales[:, None]).to(ops.dtype)


def gate_bounds_reference(gate_up: Tensor) -> Tensor:
    """Return float32 `[F]`, what `gate_bound` says of each gate of a matrix `[2 F, K]`."""
    gate, up = gate_up.float().unflatten(0, (-1, 2)).unbind(1)
    lengths = torch.linalg.vector_norm(gate, dim=1) * torch.linalg.vector_norm(up, dim=1)
    return (lengths + (gate * up).sum(1).abs()) / 2
