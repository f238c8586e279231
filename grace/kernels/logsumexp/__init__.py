"""The normaliser of a row of logits, in float64."""

from __future__ import annotations

import torch
from torch import Tensor

from grace.kernels.logsumexp.reference import logsumexp_reference
from grace.kernels.words import choose_backend

LOGITS = (torch.float32, torch.bfloat16, torch.float16)


def logsumexp(logits: Tensor, backend: str = "auto", out: Tensor | None = None) -> Tensor:
    """Return the log of the sum of exp over the last dimension.

    In float64 it is the same for every batch shape and backend to far less than a float32 step, so
    that scores do not depend on who shares a batch.

    Args:
        logits: float32, bfloat16 or float16 [..., V], V at least 1.
        backend: `auto` (native on the CPU, Triton on CUDA), `native`, `triton` or `reference`.
        out: float64 [...], contiguous, to write to.

    Returns:
        float64 [...]; -inf for a row of -inf, +inf for one with +inf, NaN for one with NaN.

    Raises:
        ValueError: if the dtype, the shape or the backend does not fit.
    """
    if logits.dtype not in LOGITS or logits.ndim == 0 or logits.shape[-1] == 0:
        raise ValueError(
            f"logits must be float32, bfloat16 or float16 [..., V] with V at least 1, got "
            f"{logits.dtype} {list(logits.shape)}"
        )
    shape = logits.shape[:-1]
    if out is not None and (
        out.dtype != torch.float64 or out.shape != shape or not out.is_contiguous()
    ):
        raise ValueError(
            f"out must be contiguous float64 {list(shape)}, got {out.dtype} {list(out.shape)}"
        )
    chosen = choose_backend(backend, logits.device)
    if torch.compiler.is_compiling():
        found = torch.ops.grace.logsumexp(logits, chosen)
    elif chosen == "triton" and out is not None:
        return _triton(logits, out)
    else:
        found = _logsumexp(logits, chosen)
    return found if out is None else out.copy_(found)


def _logsumexp(logits: Tensor, backend: str) -> Tensor:
    if backend == "reference":
        return logsumexp_reference(logits)
    if backend == "triton":
        return _triton(logits, logits.new_empty(logits.shape[:-1], dtype=torch.float64))
    from grace import _native

    rows = logits.detach().float().contiguous().reshape(-1, logits.shape[-1])
    return torch.from_numpy(_native.logsumexp(rows.numpy())).reshape(logits.shape[:-1])


def _triton(logits: Tensor, out: Tensor) -> Tensor:
    from grace.kernels.logsumexp.kernel import logsumexp_triton

    rows = logits.reshape(-1, logits.shape[-1])
    logsumexp_triton(rows if rows.stride(1) == 1 else rows.contiguous(), out.view(-1))
    return out


_operator = torch.library.custom_op("grace::logsumexp", _logsumexp, mutates_args=())


@_operator.register_fake
def _(logits: Tensor, backend: str) -> Tensor:
    return logits.new_empty(logits.shape[:-1], dtype=torch.float64)
