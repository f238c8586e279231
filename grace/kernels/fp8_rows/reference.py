"""The specification of the FP8 row kernels, in plain torch on any device."""

from __future__ import annotations

import torch
from torch import Tensor

LARGEST = 448.0  # of E4M3
# Scales are products: by a number, torch divides on a CPU and multiplies by the inverse on a GPU.
PER_LARGEST = 1 / LARGEST
LEAST_SCALE = 2.0**-126  # a smaller one has no finite inverse


def scales_reference(largest: Tensor) -> Tensor:
    """Return the scales of rows by their largest magnitudes, float32 of any shape."""
    scales = (largest * PER_LARGEST).clamp_min(LEAST_SCALE).masked_fill(largest == 0, 1.0)
    return scales.masked_fill(~largest.isfinite(), torch.nan)


def quantize_rows_reference(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return values `[rows, K]` and scales `[rows]`; the contract is `quantize_rows`'."""
    wide = x.float()
    scales = scales_reference(wide.abs().amax(1))  # the largest is NaN where the row holds one
    # What passes 448 does so by the rounding of scale and inverse, which E4M3 rounds away.
    values = (wide * (1 / scales)[:, None]).to(torch.float8_e4m3fn)
    return values, scales


def gated_scales_reference(values: Tensor, scales: Tensor, gate_bound: float) -> Tensor:
    """Return float32 `[rows]`, the scales of what a SwiGLU product can make of quantised rows."""
    squares = values.float().square().sum(1)
    gated = squares * scales * scales * (gate_bound * PER_LARGEST)
    return gated.where(~(gated < LEAST_SCALE), LEAST_SCALE).masked_fill(squares == 0, 1.0)


def rms_norm_fp8_reference(x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Return values and scales; the contract is `rms_norm_fp8`'s."""
    wide = x.float()
    scale = torch.rsqrt(wide.square().mean(1, keepdim=True) + eps)
    return quantize_rows_reference(wide * scale * weight.float())


def add_rms_norm_fp8_reference(
    x: Tensor, residual: Tensor, weight: Tensor, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Return values, scales and the sum; the contract is `add_rms_norm_fp8`'s."""
    total = x + residual
    return *rms_norm_fp8_reference(total, weight, eps), total
