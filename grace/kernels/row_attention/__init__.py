"""Attention within many short rows of a stream, with gradients: a whole row is one tile."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

from grace.kernels.backends import check_float, form, triton_or_reference
from grace.kernels.row_attention.reference import HIDDEN, row_attention_reference

__all__ = ["HIDDEN", "Rows", "row_attention"]

MAX_KEYS = 128
"""Of a row, that the Triton kernel takes."""


class Rows(NamedTuple):
    """Rows of one length, one after the other in a stream.

    Attributes:
        queries: n, of a row.
        keys: bool `[R, m]`, which of its keys each row sees; of at least one row.
    """

    queries: int
    keys: Tensor


def row_attention(
    x: Tensor,
    memory: Tensor | None,
    bias: Tensor | None,
    pieces: Sequence[Rows],
    num_heads: int,
    dropout: float = 0.0,
    backend: str = "auto",
) -> Tensor:
    """Return softmax(q k^T + bias) v for each row and head; scores are not scaled.

    Gradients reach `x`, `memory` and `bias`, in the same order of sums every time. A row that sees
    no key gets something finite.

    Args:
        x: `[T, H * D]`, queries of all rows; where there is no memory `[T, 3 * H * D]`, queries,
            keys and values side by side.
        memory: `[S, 2 * H * D]`, keys and values of all rows.
        bias: `[H, n, m]` of the longest row at least, by places in a row; None for none.
        pieces: the rows in their order: they hold T queries and S keys.
        num_heads: H.
        dropout: how many of the shares are left out, below 1.
        backend: `auto` (Triton on CUDA where a row has at most 128 keys and D is a power of 2 from
            16, else the reference), `triton` or `reference`. They draw dropout differently.

    Returns:
        `[T, H * D]`.

    Raises:
        ValueError: if shapes, dtypes or the backend do not fit.
    """
    check_float("x", x)
    parts = 3 if memory is None else 1
    dim, rest = divmod(x.shape[-1], parts * num_heads)
    if x.ndim != 2 or rest:
        raise ValueError(f"x must be [T, {parts} * {num_heads} * D], got {form(x)}")
    if memory is not None and memory.shape[1:] != (2 * num_heads * dim,):
        raise ValueError(f"memory must be [S, {2 * num_heads * dim}], got {form(memory)}")
    keys = x if memory is None else memory
    sizes = [(len(piece.keys) * piece.queries, piece.keys.numel()) for piece in pieces]
    if [sum(size) for size in zip(*sizes, strict=True)] != [len(x), len(keys)]:
        raise ValueError(f"pieces must hold {len(x)} queries and {len(keys)} keys, got {sizes}")
    longest = max(piece.keys.shape[1] for piece in pieces)
    fits = longest <= MAX_KEYS and dim >= 16 and dim & (dim - 1) == 0
    if backend == "auto" and not fits:
        backend = "reference"
    if triton_or_reference(backend, x) == "reference":
        return row_attention_reference(x, memory, bias, pieces, num_heads, dropout)
    if not fits:
        raise ValueError(
            f"backend triton takes at most {MAX_KEYS} keys a row and heads of a power of 2 from "
            f"16, got {longest} and {dim}"
        )
    from grace.kernels.row_attention.kernel import row_attention_triton

    return row_attention_triton(x, memory, bias, pieces, num_heads, dropout)
