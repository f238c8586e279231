"""A linear layer's weight as the decode loop uses it: in its dtype, and in E4M3 where asked."""

from __future__ import annotations

import torch
from torch import Tensor

from grace.kernels.fp8_rows import Fp8Rows, quantize_rows
from grace.kernels.linear import gate_bound, linear, swiglu_linear, swiglu_linear_fp8

LEAST_FP8_FLOPS = 2 * 4096 * 2048 * 1024
"""Below this much work a product in E4M3 and the quantisation before it are slower than bfloat16
(benchmarks/results/h200/linear.json, docs/fp8.md)."""


class Projection:
    """One weight `[N, K]`, and which form of its input it wants.

    Args:
        weight: `[N, K]`, any floating dtype.
        dtype: of the products that are not in E4M3.
        fp8: whether products large enough for it to pay are in E4M3.
        bias: `[N]`, or None.
    """

    def __init__(self, weight: Tensor, dtype: torch.dtype, fp8: bool, bias: Tensor | None = None):
        self.weight = weight.detach().to(dtype).contiguous()
        self.bias = None if bias is None else bias.detach().to(dtype).contiguous()
        self._rows8 = quantize_rows(weight.detach().float().contiguous()) if fp8 else None

    def takes_fp8(self, rows: int) -> bool:
        """Whether `rows` rows of input should come as `Fp8Rows`."""
        flops = 2 * rows * self.weight.shape[0] * self.weight.shape[1]
        return self._rows8 is not None and flops >= LEAST_FP8_FLOPS

    def gate_bound(self) -> float | None:
        """What a norm must know for its rows to go through `swiglu` in E4M3; None without E4M3."""
        return None if self._rows8 is None else gate_bound(self._rows8)

    def __call__(self, x: Tensor | Fp8Rows) -> Tensor:
        """Return `x @ weight^T + bias`, `[rows, N]`."""
        return linear(x, self._for(x), bias=self.bias)

    def swiglu(self, x: Tensor | Fp8Rows) -> Tensor | Fp8Rows:
        """Return the gated half, `[rows, N / 2]`; the weight's rows are gate and up in turns.

        It is in E4M3 where x has scales for it.
        """
        if isinstance(x, Fp8Rows) and x.gated_scales is not None:
            return swiglu_linear_fp8(x, self._rows8, x.gated_scales)
        return swiglu_linear(x, self._for(x))

    def add_to(self, stream: Tensor, x: Tensor | Fp8Rows) -> tuple[Tensor, Tensor | None]:
        """Add `x @ weight^T` to the residual stream `[rows, N]`, at once or later.

        Returns:
            The stream, and what is still to be added to it: None where it was added in place.
        """
        if isinstance(x, Tensor) and self.takes_fp8(len(x)):
            x = quantize_rows(x)
        if isinstance(x, Fp8Rows):
            return stream, linear(x, self._rows8)
        return stream.addmm_(x, self.weight.t()), None

    def _for(self, x: Tensor | Fp8Rows) -> Tensor | Fp8Rows:
        return self._rows8 if isinstance(x, Fp8Rows) else self.weight
