"""RMSNorm without weights, with a gradient: several narrow rows a program."""

from __future__ import annotations

from torch import Tensor

from grace.kernels.backends import check_float, form, triton_or_reference
from grace.kernels.unit_norm.reference import unit_norm_reference


def unit_norm(x: Tensor, eps: float, backend: str = "auto") -> Tensor:
    """Return `x / sqrt(mean(x^2) + eps)`, the mean over the last dimension, in float32.

    Args:
        x: `[T, d]`, any floating dtype.
        eps: added to the mean square.
        backend: `auto` (Triton on CUDA, else the reference), `triton` or `reference`.

    Returns:
        `[T, d]`, of the same dtype.

    Raises:
        ValueError: if the shape, the dtype or the backend does not fit.
    """
    check_float("x", x)
    if x.ndim != 2:
        raise ValueError(f"x must be [T, d], got {form(x)}")
    if triton_or_reference(backend, x) == "reference":
        return unit_norm_reference(x, eps)
    from grace.kernels.unit_norm.kernel import unit_norm_triton

    return unit_norm_triton(x, eps)
