"""What one product is made of, as the backends of linear take it."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Operands(NamedTuple):
    """Checked arguments of `linear` or `swiglu_linear`.

    Attributes:
        x: `[rows, K]`, as are `weight` `[N, K]` and `residual` `[rows, N]` contiguous.
        x_scales: float32 `[rows]` where x and weight are float8_e4m3fn, else None, as the next.
        weight: of x's dtype.
        weight_scales: float32 `[N]`.
        residual: of `dtype`, or None.
        bias: `[N]` of `dtype`, or None.
        swiglu: whether columns 2 f and 2 f + 1 are a gate and its value, to be made one.
        dtype: of the result.
        out_scales: float32 `[rows]`, by which the rows are divided before they become E4M3; None
            for a result of another dtype.
    """

    x: Tensor
    x_scales: Tensor | None
    weight: Tensor
    weight_scales: Tensor | None
    residual: Tensor | None
    bias: Tensor | None
    swiglu: bool
    dtype: torch.dtype
    out_scales: Tensor | None = None

    def new_output(self) -> Tensor:
        """Return an uninitialised `[rows, N]`, or `[rows, N // 2]` with SwiGLU."""
        columns = self.weight.shape[0] // (1 + self.swiglu)
        return self.x.new_empty((self.x.shape[0], columns), dtype=self.dtype)
