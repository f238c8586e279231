"""The specification of row_attention, in plain torch on any device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

if TYPE_CHECKING:
    from grace.kernels.row_attention import Rows

HIDDEN = -1e30
"""The bias of a hidden key: no score outweighs it, and it stays finite times anything small."""


def row_attention_reference(
    x: Tensor,
    memory: Tensor | None,
    bias: Tensor | None,
    pieces: Sequence[Rows],
    num_heads: int,
    dropout: float,
) -> Tensor:
    """Return `[T, H * D]`; the contract is `row_attention`'s."""
    width = x.shape[1] // (3 if memory is None else 1)
    query = x[:, :width]
    keys_values = x[:, width:] if memory is None else memory
    query_parts = query.split([len(piece.keys) * piece.queries for piece in pieces])
    memory_parts = keys_values.split([piece.keys.numel() for piece in pieces])
    out = []
    for piece, q, kv in zip(pieces, query_parts, memory_parts, strict=True):
        rows, length = piece.keys.shape
        q = q.unflatten(0, (rows, -1)).unflatten(2, (num_heads, -1)).transpose(1, 2)
        k, v = kv.reshape(rows, length, 2, num_heads, -1).permute(2, 0, 3, 1, 4)
        mask = torch.where(piece.keys, 0.0, HIDDEN).to(x.dtype)[:, None, None, :]
        if bias is not None:
            mask = bias[:, : piece.queries, :length] + mask
        mask = mask.expand(-1, -1, piece.queries, -1)
        mixed = F.scaled_dot_product_attention(q, k, v, mask, dropout, scale=1.0)
        out.append(mixed.transpose(1, 2).flatten(2).flatten(0, 1))
    return torch.cat(out)
