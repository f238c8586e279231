"""RMSNorm, alone or with the residual sum before it."""

from __future__ import annotations

import torch
from torch import Tensor

from grace.kernels.backends import check_float, check_form, form, runs_plain, triton_or_reference
from grace.kernels.rms_norm.reference import add_rms_norm_reference, rms_norm_reference


def rms_norm(x: Tensor, weight: Tensor, eps: float, backend: str = "auto") -> Tensor:
    """Return `x / sqrt(mean(x^2) + eps) * weight`, the mean over the last dimension.

    All in float32 (float64 for float64), rounded once. No gradients.

    Args:
        x: `[..., d]`, any floating dtype.
        weight: `[d]`, of the same dtype.
        eps: added to the mean square; `nn.RMSNorm` without one takes a dtype's epsilon.
        backend: `auto` (Triton on CUDA, else the reference), `triton`, `reference`, or `native`:
            float32 on a CPU, faster for few rows; it adds squares up in another order.

    Returns:
        `[..., d]`, contiguous.

    Raises:
        ValueError: if shapes, dtypes, devices or the backend do not fit.
    """
    _check(x, weight)
    if backend == "native":
        return _native_rms_norm(x, weight, eps)
    chosen = triton_or_reference(backend, x)
    if runs_plain(chosen):
        return rms_norm_reference(x, weight, eps)
    return torch.ops.grace.rms_norm(x, weight, eps, chosen)


def add_rms_norm(
    x: Tensor, residual: Tensor, weight: Tensor, eps: float, backend: str = "auto"
) -> tuple[Tensor, Tensor]:
    """Return `rms_norm(x + residual)` and the sum `x + residual`, in one pass over both.

    The sum is rounded to its dtype before it is normed, as two calls would do it.

    Args:
        x: `[..., d]`.
        residual: `[..., d]`, like `x`.
        weight: as in `rms_norm`, like `eps` and `backend`.

    Raises:
        ValueError: as in `rms_norm`.
    """
    _check(x, weight)
    check_form("residual", residual, x.shape, x)
    chosen = triton_or_reference(backend, x)
    if runs_plain(chosen):
        return add_rms_norm_reference(x, residual, weight, eps)
    return torch.ops.grace.add_rms_norm(x, residual, weight, eps, chosen)


def _native_rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    if x.device.type != "cpu" or x.dtype != torch.float32:
        raise ValueError(f"backend native takes float32 on a CPU, got {form(x)} on {x.device}")
    from grace import _native

    rows = x.detach().reshape(-1, x.shape[-1]).contiguous()
    out = torch.empty(rows.shape)
    _native.rms_norm(rows.numpy(), weight.detach().contiguous().numpy(), eps, out.numpy())
    return out.view(x.shape)


@torch.library.custom_op("grace::rms_norm", mutates_args=())
def _rms_norm(x: Tensor, weight: Tensor, eps: float, backend: str) -> Tensor:
    if backend == "reference":
        return rms_norm_reference(x, weight, eps).contiguous()
    from grace.kernels.rms_norm.kernel import rms_norm_triton

    return rms_norm_triton(x.contiguous(), None, weight, eps)[0]


@torch.library.custom_op("grace::add_rms_norm", mutates_args=())
def _add_rms_norm(
    x: Tensor, residual: Tensor, weight: Tensor, eps: float, backend: str
) -> tuple[Tensor, Tensor]:
    if backend == "reference":
        normed, total = add_rms_norm_reference(x, residual, weight, eps)
        return normed.contiguous(), total.contiguous()
    from grace.kernels.rms_norm.kernel import rms_norm_triton

    return rms_norm_triton(x.contiguous(), residual.contiguous(), weight, eps)


@_rms_norm.register_fake
def _(x: Tensor, weight: Tensor, eps: float, backend: str) -> Tensor:
    return x.new_empty(x.shape)


@_add_rms_norm.register_fake
def _(
    x: Tensor, residual: Tensor, weight: Tensor, eps: float, backend: str
) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape), x.new_empty(x.shape)


def _check(x: Tensor, weight: Tensor) -> None:
    check_float("x", x)
    if x.ndim == 0 or x.shape[-1] == 0:
        raise ValueError(f"x must be [..., d] with d at least 1, got {form(x)}")
    check_form("weight", weight, x.shape[-1:], x)
