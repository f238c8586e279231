"""Self-attention of one new token per beam over rows that stay where their steps left them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from grace.kernels.ancestor_attention.reference import ancestor_attention_reference
from grace.kernels.backends import form

BACKENDS = ("auto", "native", "reference")


def ancestor_attention(
    own: Tensor,
    past: Sequence[Tensor],
    ancestors: Sequence[Tensor],
    bias: Tensor,
    backend: str = "auto",
) -> Tensor:
    """Let each row attend to its own position and to those of its ancestors.

    Each step's projections stay as that step wrote them, and a row says which row of each earlier
    step it continues: re-ordering beams copies no keys and no values. Scores are not scaled.

    Args:
        own: float32 `[rows, 3 * H * D]`, contiguous: queries, keys and values of the new position.
        past: per earlier position, the same of that step's rows; queries are not read.
        ancestors: per earlier position int64 `[rows]`, rows of `past`.
        bias: float32 `[H, n]`, added to the scores of the n positions, the new one last.
        backend: `auto` (native on the CPU, else the reference), `native` or `reference`.

    Returns:
        float32 `[rows, H * D]`.

    Raises:
        ValueError: if shapes, dtypes or the backend do not fit, or native code is to run elsewhere
            than on the CPU. Rows of `ancestors` are checked by native code alone.
    """
    if backend not in BACKENDS:
        raise ValueError(f"backend must be one of {', '.join(BACKENDS)}, got {backend!r}")
    if own.ndim != 2 or own.dtype != torch.float32:
        raise ValueError(f"own must be float32 [rows, 3 * H * D], got {form(own)}")
    if len(past) != len(ancestors) or bias.ndim != 2 or bias.shape[1] != len(past) + 1:
        raise ValueError(
            f"bias must have a column for each of {len(past)} earlier positions and the new one, "
            f"and ancestors {len(past)} entries, got {form(bias)} and {len(ancestors)}"
        )
    if own.shape[1] % (3 * len(bias)):
        raise ValueError(f"own must hold 3 * {len(bias)} heads a row, got {form(own)}")
    for rows, place in zip(past, ancestors, strict=True):
        if rows.shape[1:] != own.shape[1:] or rows.dtype != own.dtype:
            raise ValueError(f"past must be like own, {form(own)}, got {form(rows)}")
        if place.shape != own.shape[:1] or place.dtype != torch.int64:
            raise ValueError(f"ancestors must be int64 [{len(own)}], got {form(place)}")
    if backend == "reference" or (backend == "auto" and own.device.type != "cpu"):
        return ancestor_attention_reference(own, past, ancestors, bias)
    if own.device.type != "cpu":
        raise ValueError(f"native code runs on the CPU, got tensors on {own.device}")
    from grace import _native

    arrays = [[tensor.contiguous().numpy() for tensor in part] for part in (past, ancestors)]
    out = torch.empty(len(own), own.shape[1] // 3)
    _native.ancestor_attention(
        own.contiguous().numpy(), *arrays, bias.contiguous().numpy(), out.numpy()
    )
    return out
