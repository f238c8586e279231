"""Rows in FP8 (E4M3) with a scale each: quantised alone, or by what computes them.

A row's scale is the largest magnitude in it by 448, E4M3's largest number, so that nothing
saturates; 2^-126 where that would be less, 1 for a row of zeros. Its values are the row by its
scale, rounded to the nearest, ties to even. All before that is float32, and so that every backend
rounds alike, the scale is a product with float32(1 / 448), and the row is multiplied by the
scale's correctly rounded inverse. A row that holds NaN or an infinity gets the scale NaN, and so is
NaN as a whole; no other row notices. No gradients.
"""

from __future__ import annotations

import torch
from torch import Tensor

from grace.kernels.backends import check_float, check_form, form, runs_plain, triton_or_reference
from grace.kernels.fp8_rows.reference import (
    add_rms_norm_fp8_reference,
    gated_scales_reference,
    quantize_rows_reference,
    rms_norm_fp8_reference,
)
from grace.kernels.fp8_rows.rows import Fp8Rows

__all__ = ["Fp8Rows", "add_rms_norm_fp8", "quantize_rows", "rms_norm_fp8"]


def quantize_rows(x: Tensor, backend: str = "auto") -> Fp8Rows:
    """Return `x` in FP8.

    Args:
        x: `[rows, K]`, any floating dtype, K at least 1.
        backend: `auto` (Triton on CUDA, else the reference), `triton` or `reference`. Both return
            the same bits.

    Returns:
        Values `[rows, K]`, scales `[rows]`.

    Raises:
        ValueError: if the shape, the dtype or the backend does not fit.
    """
    _check_rows(x)
    chosen = triton_or_reference(backend, x)
    if runs_plain(chosen):
        return Fp8Rows(*quantize_rows_reference(x))
    return Fp8Rows(*torch.ops.grace.quantize_rows(x, chosen))


def rms_norm_fp8(
    x: Tensor,
    weight: Tensor,
    eps: float,
    backend: str = "auto",
    gate_bound: float | None = None,
) -> Fp8Rows:
    """Return `rms_norm(x, weight, eps)` in FP8, with no rounding to x's dtype in between.

    Args:
        x: `[rows, d]`, any floating dtype, d at least 1.
        weight: `[d]`, of the same dtype.
        eps: added to the mean square.
        backend: as in `quantize_rows`, but the order of a row's sum depends on it.
        gate_bound: of the weight of the SwiGLU product that the rows go into
            (`grace.kernels.linear.gate_bound`). The result then has `gated_scales` as well: the
            squared length of each row as it is stored, times the bound, by 448; at least 2^-126,
            but 1 for a row of zeros.

    Returns:
        Values `[rows, d]`, scales `[rows]`.

    Raises:
        ValueError: if shapes, dtypes, devices or the backend do not fit.
    """
    _check_norm(x, weight)
    chosen = triton_or_reference(backend, x)
    if runs_plain(chosen):
        rows = rms_norm_fp8_reference(x, weight, eps)
        return Fp8Rows(*rows, _gated(*rows, gate_bound))
    values, scales, gated = torch.ops.grace.rms_norm_fp8(x, weight, eps, chosen, gate_bound)
    return Fp8Rows(values, scales, None if gate_bound is None else gated)


def add_rms_norm_fp8(
    x: Tensor,
    residual: Tensor,
    weight: Tensor,
    eps: float,
    backend: str = "auto",
    gate_bound: float | None = None,
) -> tuple[Fp8Rows, Tensor]:
    """Return `rms_norm_fp8(x + residual)` and the sum `x + residual`, in one pass over both.

    The sum is rounded to its dtype before it is normed, as two calls would do it.

    Args:
        x: `[rows, d]`.
        residual: `[rows, d]`, like `x`.
        weight: as in `rms_norm_fp8`, like all that follows.

    Raises:
        ValueError: as in `rms_norm_fp8`.
    """
    _check_norm(x, weight)
    check_form("residual", residual, x.shape, x)
    chosen = triton_or_reference(backend, x)
    if runs_plain(chosen):
        values, scales, total = add_rms_norm_fp8_reference(x, residual, weight, eps)
        return Fp8Rows(values, scales, _gated(values, scales, gate_bound)), total
    values, scales, total, gated = torch.ops.grace.add_rms_norm_fp8(
        x, residual, weight, eps, chosen, gate_bound
    )
    return Fp8Rows(values, scales, None if gate_bound is None else gated), total


@torch.library.custom_op("grace::quantize_rows", mutates_args=())
def _quantize_rows(x: Tensor, backend: str) -> tuple[Tensor, Tensor]:
    if backend == "reference":
        return _contiguous(quantize_rows_reference(x))
    from grace.kernels.fp8_rows.kernel import quantize_rows_triton

    return quantize_rows_triton(x.contiguous())


@torch.library.custom_op("grace::rms_norm_fp8", mutates_args=())
def _rms_norm_fp8(
    x: Tensor, weight: Tensor, eps: float, backend: str, gate_bound: float | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    if backend == "reference":
        values, scales = _contiguous(rms_norm_fp8_reference(x, weight, eps))
        return values, scales, _gated_or_empty(values, scales, gate_bound)
    from grace.kernels.fp8_rows.kernel import rms_norm_fp8_triton

    values, scales, _, gated = rms_norm_fp8_triton(x.contiguous(), None, weight, eps, gate_bound)
    return values, scales, gated


@torch.library.custom_op("grace::add_rms_norm_fp8", mutates_args=())
def _add_rms_norm_fp8(
    x: Tensor,
    residual: Tensor,
    weight: Tensor,
    eps: float,
    backend: str,
    gate_bound: float | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    if backend == "reference":
        rows = _contiguous(add_rms_norm_fp8_reference(x, residual, weight, eps))
        return *rows, _gated_or_empty(*rows[:2], gate_bound)
    from grace.kernels.fp8_rows.kernel import rms_norm_fp8_triton

    return rms_norm_fp8_triton(x.contiguous(), residual.contiguous(), weight, eps, gate_bound)


@_quantize_rows.register_fake
def _(x: Tensor, backend: str) -> tuple[Tensor, Tensor]:
    return _fake(x)


@_rms_norm_fp8.register_fake
def _(
    x: Tensor, weight: Tensor, eps: float, backend: str, gate_bound: float | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    return *_fake(x), _new_gated(x, gate_bound)


@_add_rms_norm_fp8.register_fake
def _(
    x: Tensor,
    residual: Tensor,
    weight: Tensor,
    eps: float,
    backend: str,
    gate_bound: float | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return *_fake(x), x.new_empty(x.shape), _new_gated(x, gate_bound)


def _fake(x: Tensor) -> tuple[Tensor, Tensor]:
    values = x.new_empty(x.shape, dtype=torch.float8_e4m3fn)
    return values, x.new_empty(x.shape[0], dtype=torch.float32)


def _new_gated(x: Tensor, gate_bound: float | None) -> Tensor:
    # An operation returns tensors, not None.
    return x.new_empty(0 if gate_bound is None else x.shape[0], dtype=torch.float32)


def _gated(values: Tensor, scales: Tensor, gate_bound: float | None) -> Tensor | None:
    return None if gate_bound is None else gated_scales_reference(values, scales, gate_bound)


def _gated_or_empty(values: Tensor, scales: Tensor, gate_bound: float | None) -> Tensor:
    gated = _gated(values, scales, gate_bound)
    return _new_gated(values, None) if gated is None else gated


def _contiguous(tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return tuple(tensor.contiguous() for tensor in tensors)


def _check_rows(x: Tensor) -> None:
    check_float("x", x)
    if x.ndim != 2 or x.shape[1] == 0:
        raise ValueError(f"x must be [rows, K] with K at least 1, got {form(x)}")


def _check_norm(x: Tensor, weight: Tensor) -> None:
    _check_rows(x)
    check_form("weight", weight, x.shape[1:], x)
