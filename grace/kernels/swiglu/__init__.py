"""The gate of a SwiGLU block: silu of one half times the other (Shazeer, 2020)."""

from __future__ import annotations

import torch
from torch import Tensor

from grace.kernels.backends import check_float, form, runs_plain, triton_or_reference
from grace.kernels.swiglu.reference import swiglu_reference


def swiglu(gate_up: Tensor, backend: str = "auto", interleaved: bool = False) -> Tensor:
    """Return `silu(gate) * up` in float32 (float64 for float64), rounded once. No gradients.

    Args:
        gate_up: `[..., 2 F]`, any floating dtype: F gates, then F values.
        backend: `auto` (Triton on CUDA, else the reference), `triton` or `reference`.
        interleaved: whether each gate stands before its own value instead.

    Returns:
        `[..., F]`, contiguous.

    Raises:
        ValueError: if the shape, the dtype or the backend does not fit.
    """
    check_float("gate_up", gate_up)
    if gate_up.ndim == 0 or gate_up.shape[-1] % 2:
        raise ValueError(f"gate_up must be [..., 2 F], got {form(gate_up)}")
    chosen = triton_or_reference(backend, gate_up)
    if runs_plain(chosen):
        return swiglu_reference(gate_up, interleaved).contiguous()
    return torch.ops.grace.swiglu(gate_up, chosen, interleaved)


@torch.library.custom_op("grace::swiglu", mutates_args=())
def _swiglu(gate_up: Tensor, backend: str, interleaved: bool = False) -> Tensor:
    if backend == "reference":
        return swiglu_reference(gate_up, interleaved).contiguous()
    from grace.kernels.swiglu.kernel import swiglu_triton

    return swiglu_triton(gate_up.contiguous(), interleaved)


@_swiglu.register_fake
def _(gate_up: Tensor, backend: str, interleaved: bool = False) -> Tensor:
    return gate_up.new_empty((*gate_up.shape[:-1], gate_up.shape[-1] // 2))
