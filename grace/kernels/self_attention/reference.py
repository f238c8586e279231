"""The specification of self-attention over short prefixes, in plain torch on any device."""

from __future__ import annotations

import torch
from torch import Tensor

from grace.kernels.fp8_rows.reference import quantize_rows_reference


def attend_reference(query: Tensor, blocks: Tensor) -> Tensor:
    """Let each row attend to the positions of its prefix.

    Args:
        query: `[rows, H, D]`.
        blocks: `[rows, n, 2, Hkv, D]`, keys and values of the n positions of each row.

    Returns:
        `[rows, H, D]`; scores, softmax and sums are float32, or float64 for float64.
    """
    rows, num_heads, head_dim = query.shape
    wide = torch.promote_types(query.dtype, torch.float32)
    keys, values = blocks.to(wide).unbind(2)
    grouped = query.to(wide).reshape(rows, blocks.shape[3], -1, head_dim)
    scores = torch.einsum("rkgd,rnkd->rkgn", grouped, keys) * head_dim**-0.5
    attended = torch.einsum("rkgn,rnkd->rkgd", torch.softmax(scores, -1), values)
    return attended.reshape(rows, num_heads, head_dim).to(query.dtype)


def split_reference(qkv: Tensor, num_kv_heads: int, head_dim: int) -> tuple[Tensor, Tensor]:
    """Split a projection's output `[rows, (H + 2 Hkv) D]` into queries and blocks.

    Returns:
        `[rows, H, D]` and `[rows, 2, Hkv, D]`.
    """
    heads = qkv.unflatten(1, (-1, head_dim))
    return heads[:, : -2 * num_kv_heads], heads[:, -2 * num_kv_heads :].unflatten(1, (2, -1))


def fused_reference(qkv: Tensor, cache: Tensor, t: int) -> Tensor:
    """Return `[rows, H, D]`; the contract is `self_attention_fused`'s."""
    query, blocks = split_reference(qkv, cache.shape[3], cache.shape[4])
    cache[:, t] = blocks
    return attend_reference(query, cache[:, : t + 1])


def paged_reference(qkv: Tensor, pool: Tensor, table: Tensor, t: int, keep: bool) -> Tensor:
    """Return `[rows, H, D]`; the contract is `self_attention_paged`'s."""
    return attend_reference(*_paged(qkv, pool, table, t, keep))


def _paged(qkv: Tensor, pool: Tensor, table: Tensor, t: int, keep: bool) -> tuple[Tensor, Tensor]:
    """Write what is kept; return queries `[rows, H, D]` and blocks `[rows, t + 1, 2, Hkv, D]`."""
    query, own = split_reference(qkv, pool.shape[2], pool.shape[3])
    if keep:
        pool[table[:, t].long()] = own
    return query, torch.cat([pool[table[:, :t].long()], own[:, None]], 1)


def from_table_reference(queries: Tensor, pool: Tensor, table: Tensor, t: int) -> Tensor:
    """Return `[rows, H, D]`; the contract is `self_attention_from_table`'s."""
    table = table[:, : t + 1].long()
    return attend_reference(queries[table[:, t]], pool[table])


def paged_fp8_reference(
    qkv: Tensor, pool: Tensor, table: Tensor, t: int, keep: bool
) -> tuple[Tensor, Tensor]:
    """Return values `[rows, H D]` and scales; the contract is `self_attention_paged_fp8`'s."""
    query, blocks = _paged(qkv, pool, table, t, keep)
    return quantize_rows_reference(attend_reference(query.float(), blocks).flatten(1))


def from_table_fp8_reference(
    queries: Tensor, pool: Tensor, table: Tensor, t: int
) -> tuple[Tensor, Tensor]:
    """Return values and scales; the contract is `self_attention_from_table_fp8`'s."""
    attended = from_table_reference(queries.float(), pool, table, t)
    return quantize_rows_reference(attended.flatten(1))
