"""The normaliser of a row of logits, in float64."""

from __future__ import annotations

import torch
from torch import Tensor

from grace.kernels.logsumexp.reference import logsumexp_reference


def logsumexp(logits: Tensor, backend: str = "auto") -> Tensor:
    """Return the log of the sum of exp over the last dimension.

    In float64 it is the same for every batch shape and backend to far less than a float32 step, so
    that scores do not depend on who shares a batch.

    Args:
        logits: float32 [..., V], V at least 1.
        backend: `auto` (native on the CPU, reference elsewhere), `native` or `reference`.

    Returns:
        float64 [...]; -inf for a row of -inf, +inf for one with +inf, NaN for one with NaN.

    Raises:
        ValueError: if the dtype, the shape or the backend does not fit.
    """
    if logits.dtype != torch.float32 or logits.ndim == 0 or logits.shape[-1] == 0:
        raise ValueError(
            f"logits must be float32 [..., V] with V at least 1, got {logits.dtype} "
            f"{list(logits.shape)}"
        )
    if backend not in ("auto", "native", "reference"):
        raise ValueError(f"backend must be auto, native or reference, got {backend!r}")
    if backend == "reference" or (backend == "auto" and logits.device.type != "cpu"):
        return logsumexp_reference(logits)
    from grace import _native

    rows = logits.detach().contiguous().reshape(-1, logits.shape[-1])
    return torch.from_numpy(_native.logsumexp(rows.numpy())).reshape(logits.shape[:-1])
