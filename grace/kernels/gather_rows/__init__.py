"""The same rows of two tables at once."""

from __future__ import annotations

import torch
from torch import Tensor

from grace.kernels.backends import form, runs_plain, triton_or_reference
from grace.kernels.gather_rows.reference import gather_rows_reference


def gather_rows(
    first: Tensor, second: Tensor, rows: Tensor, offset: int = 0, backend: str = "auto"
) -> tuple[Tensor, Tensor]:
    """Return rows `rows - offset` of both tables, and row 0 for what is below the offset.

    Args:
        first: `[n, X]`, contiguous, neither n nor X 0.
        second: `[n, Y]`, like `first`.
        rows: int64 `[R]`, each below `offset + n`.
        offset: the number of the tables' first row.
        backend: `auto` (Triton on CUDA, else the reference), `triton` or `reference`.

    Returns:
        `[R, X]` and `[R, Y]`.

    Raises:
        ValueError: if shapes, dtypes, devices or the backend do not fit.
    """
    for name, table in (("first", first), ("second", second)):
        if table.ndim != 2 or not table.is_contiguous() or table.numel() == 0:
            raise ValueError(f"{name} must be contiguous [n, columns], none 0, got {form(table)}")
    if len(first) != len(second) or first.dtype != second.dtype or first.device != second.device:
        raise ValueError(f"first and second must be alike, got {form(first)} and {form(second)}")
    if rows.dtype != torch.int64 or rows.ndim != 1 or rows.device != first.device:
        raise ValueError(f"rows must be int64 [R] on {first.device}, got {form(rows)}")
    chosen = triton_or_reference(backend, first)
    if runs_plain(chosen):
        return gather_rows_reference(first, second, rows, offset)
    return torch.ops.grace.gather_rows(first, second, rows, offset, chosen)


@torch.library.custom_op("grace::gather_rows", mutates_args=())
def _gather_rows(
    first: Tensor, second: Tensor, rows: Tensor, offset: int, backend: str
) -> tuple[Tensor, Tensor]:
    if backend == "reference":
        return gather_rows_reference(first, second, rows, offset)
    from grace.kernels.gather_rows.kernel import gather_rows_triton

    return gather_rows_triton(first, second, rows.contiguous(), offset)


@_gather_rows.register_fake
def _(
    first: Tensor, second: Tensor, rows: Tensor, offset: int, backend: str
) -> tuple[Tensor, Tensor]:
    return first.new_empty(len(rows), first.shape[1]), second.new_empty(len(rows), second.shape[1])
