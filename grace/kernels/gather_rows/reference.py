"""The specification of gather_rows, in plain torch on any device."""

from __future__ import annotations

from torch import Tensor


def gather_rows_reference(
    first: Tensor, second: Tensor, rows: Tensor, offset: int
) -> tuple[Tensor, Tensor]:
    """Return `[R, X]` and `[R, Y]`; the contract is `gather_rows`'."""
    rows = (rows - offset).clamp_min(0)
    return first.index_select(0, rows), second.index_select(0, rows)
