"""A matrix in FP8 with one scale a row: what the FP8 kernels hand to each other."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Fp8Rows:
    """A matrix whose row r is about `values[r] * scales[r]`.

    Attributes:
        values: float8_e4m3fn `[rows, K]`, contiguous.
        scales: float32 `[rows]`; NaN where the row that was quantised held NaN or an infinity.
        gated_scales: float32 `[rows]`, scales for the SwiGLU product of these rows and the weight
            that the norm was told of (`grace.kernels.linear.swiglu_linear_fp8`); else None.
    """

    values: Tensor
    scales: Tensor
    gated_scales: Tensor | None = None

    def float(self) -> Tensor:
        """Return the matrix in float32, `[rows, K]`."""
        return self.values.float() * self.scales[:, None]
