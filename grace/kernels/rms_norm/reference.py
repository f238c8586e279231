"""The specification of rms_norm and add_rms_norm, in plain torch on any device."""

from __future__ import annotations

import torch
from torch import Tensor


def rms_norm_reference(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Return `[..., d]`; the contract is `rms_norm`'s."""
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return (wide * scale * weight).to(x.dtype)


def add_rms_norm_reference(
    x: Tensor, residual: Tensor, weight: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    """Return normed and sum, `[..., d]` each; the contract is `add_rms_norm`'s."""
    total = x + residual
    return rms_norm_reference(total, weight, eps), total
