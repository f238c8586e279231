"""What each version of self-attention over short prefixes refuses, with a ValueError."""

from __future__ import annotations

import torch
from torch import Tensor

from grace.kernels.backends import check_float, check_form, form


def check_dense(query: Tensor, cache: Tensor, t: int) -> None:
    """Refuse what `self_attention` cannot take."""
    check_float("query", query)
    if query.ndim != 3:
        raise ValueError(f"query must be [rows, H, D], got {form(query)}")
    rows, num_heads, head_dim = query.shape
    _check_cache("cache", cache, "[rows, L, 2, Hkv, D]", 5)
    check_form("cache", cache, (rows, cache.shape[1], 2, cache.shape[3], head_dim), query)
    _check_heads(num_heads, cache.shape[3])
    _check_position(t, cache.shape[1])


def check_fused(qkv: Tensor, cache: Tensor, t: int) -> None:
    """Refuse what `self_attention_fused` cannot take."""
    _check_cache("cache", cache, "[rows, L, 2, Hkv, D]", 5)
    check_form("cache", cache, (_num_rows(qkv), cache.shape[1], 2, *cache.shape[3:]), qkv)
    _check_projection(qkv, cache.shape[3], cache.shape[4])
    _check_position(t, cache.shape[1])


def check_paged(qkv: Tensor, pool: Tensor, table: Tensor, t: int) -> None:
    """Refuse what `self_attention_paged` cannot take."""
    _check_cache("pool", pool, "[blocks, 2, Hkv, D]", 4)
    check_form("pool", pool, (pool.shape[0], 2, *pool.shape[2:]), qkv)
    _check_projection(qkv, pool.shape[2], pool.shape[3])
    if len(table) != len(qkv):
        raise ValueError(f"table must be int32 [{len(qkv)}, L], got {form(table)}")
    _check_table(table, qkv)
    _check_position(t, table.shape[1])


def check_from_table(queries: Tensor, pool: Tensor, table: Tensor, t: int) -> None:
    """Refuse what `self_attention_from_table` cannot take."""
    check_float("queries", queries)
    if queries.ndim != 3 or not queries.is_contiguous():
        raise ValueError(f"queries must be contiguous [blocks, H, D], got {form(queries)}")
    _check_cache("pool", pool, "[blocks, 2, Hkv, D]", 4)
    blocks, num_heads, head_dim = queries.shape
    check_form("pool", pool, (blocks, 2, pool.shape[2], head_dim), queries)
    _check_heads(num_heads, pool.shape[2])
    _check_table(table, queries)
    _check_position(t, table.shape[1])


def _num_rows(qkv: Tensor) -> int:
    check_float("qkv", qkv)
    if qkv.ndim != 2:
        raise ValueError(f"qkv must be [rows, (H + 2 Hkv) * D], got {form(qkv)}")
    return qkv.shape[0]


def _check_cache(name: str, cache: Tensor, shape: str, ndim: int) -> None:
    if cache.ndim != ndim or not cache.is_contiguous():
        raise ValueError(f"{name} must be contiguous {shape}, got {form(cache)}")


def _check_table(table: Tensor, like: Tensor) -> None:
    if table.dtype != torch.int32 or table.ndim != 2:
        raise ValueError(f"table must be int32 [rows, L], got {form(table)}")
    if table.device != like.device or not table.is_contiguous():
        raise ValueError(f"table must be contiguous and on {like.device}")


def _check_projection(qkv: Tensor, num_kv_heads: int, head_dim: int) -> None:
    _num_rows(qkv)
    heads, rest = divmod(qkv.shape[1], head_dim)
    if rest:
        raise ValueError(
            f"qkv must have a multiple of the head size {head_dim} as width, got {form(qkv)}"
        )
    _check_heads(heads - 2 * num_kv_heads, num_kv_heads)


def _check_heads(num_heads: int, num_kv_heads: int) -> None:
    if num_kv_heads < 1 or num_heads < 1 or num_heads % num_kv_heads:
        raise ValueError(
            f"the number of query heads must be a multiple of the {num_kv_heads} key heads, "
            f"got {num_heads}"
        )


def _check_position(t: int, max_length: int) -> None:
    if not 0 <= t < max_length:
        raise ValueError(f"t must be from 0 to {max_length - 1}, got {t}")
