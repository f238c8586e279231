"""A linear layer's weight as the decode loop uses it: in its dtype, and in E4M3 where asked.

The form of an input says in which of the two its product is; `takes_fp8` says which one it should
have. No input is quantised here.
"""

from __future__ import annotations

import torch
from torch import Tensor

from grace.kernels.fp8_rows import Fp8Rows, add_rms_norm_fp8, quantize_rows, rms_norm_fp8
from grace.kernels.linear import gate_bound, linear, swiglu_linear, swiglu_linear_fp8
from grace.kernels.tuning import choose

LEAST_FP8_FLOPS = 2 * 512 * 6144 * 1024
"""Products with less work stay in bfloat16; those with more win in FP8 by any account
(`python -m benchmarks.kernels.bench_linear`, docs/fp8.md)."""

ADDITIONS = ["later", "at once"]  # to the residual stream


class Projection:
    """One weight `[N, K]`, and which form of its input it wants: `[rows, K]`.

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

        Which is faster in E4M3 depends on the product: at once it reads the stream, too, and few
        of its configurations can, but the norm that follows reads and writes less. The two are
        measured together, at the first call of a shape.

        Args:
            stream: `[rows, N]`, of the products' dtype.
            x: `[rows, K]` of that dtype, or FP8 rows.

        Returns:
            The stream, which may be the old one, overwritten, and what is still to be added to it,
            or None.
        """
        if isinstance(x, Tensor):
            return stream.addmm_(x, self.weight.t()), None
        shape = (1 << (len(stream) - 1).bit_length(), *self.weight.shape)

        def run(how: str) -> None:
            self._add_and_norm(stream, x, how)

        return self._add(stream, x, choose("add_to", shape, ADDITIONS, run, stream.device))

    def _add(self, stream: Tensor, x: Fp8Rows, how: str) -> tuple[Tensor, Tensor | None]:
        if how == "later":
            return stream, linear(x, self._rows8)
        return linear(x, self._rows8, residual=stream), None

    def _add_and_norm(self, stream: Tensor, x: Fp8Rows, how: str) -> None:
        stream, delta = self._add(stream, x, how)
        if delta is None:
            rms_norm_fp8(stream, stream[0], 1e-6)
        else:
            add_rms_norm_fp8(delta, stream, stream[0], 1e-6)

    def _for(self, x: Tensor | Fp8Rows) -> Tensor | Fp8Rows:
        return self._rows8 if isinstance(x, Fp8Rows) else self.weight
