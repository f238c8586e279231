"""Rows in E4M3 with one scale each."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Fp8Rows:
    """A matrix whose row r is about `values[r].float() * scales[r]`.

    Attributes:
        values: float8_e4m3fn `[rows, K]`, contiguous.
        scales: float32 `[rows]`.
    """

    values: Tensor
    scales: Tensor

    def float(self) -> Tensor:
        """Return the float32 `[rows, K]` that the rows stand for."""
        return self.values.float() * self.scales[:, None]
