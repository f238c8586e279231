"""Self-attention of one new token per beam over its short SID prefix (GRACE, 4.2 and 4.3).

All versions share one kernel and one block: the keys and values of one row's one position,
`[2, Hkv, D]`, all heads. A cache is either dense, `[rows, L, 2, Hkv, D]`, or paged: a pool of
blocks and a table that says which block holds which position of which row.

- `self_attention`: dense; the caller wrote position t already.
- `self_attention_fused`: dense; reads the QKV projection's output and writes position t itself.
- `self_attention_paged`: the same over a pool; children share the blocks of their parent's prefix,
  so that re-ordering beams (`grace.kernels.block_reorder`) moves ids and no keys or values.
- `self_attention_from_table`: over a pool that holds position t already, and queries as well.
- `self_attention_paged_fp8` and `self_attention_from_table_fp8`: as the last two, but the result is
  in FP8 (`grace.kernels.fp8_rows`), for the product that reads it.

All of them read positions 0..t of a row and nothing else: slots past t may hold anything. No row's
values reach another row, not even where they are NaN. Query head h reads key head h // (H / Hkv).
Scores are scaled by D^-1/2; they, the softmax and the sums are float32 (float64 for float64). No
gradients.
"""

from __future__ import annotations

import torch
from torch import Tensor

from grace.kernels.backends import runs_plain, triton_or_reference
from grace.kernels.fp8_rows.rows import Fp8Rows
from grace.kernels.self_attention.checks import (
    check_dense,
    check_from_table,
    check_fused,
    check_paged,
)
from grace.kernels.self_attention.reference import (
    attend_reference,
    from_table_fp8_reference,
    from_table_reference,
    fused_reference,
    paged_fp8_reference,
    paged_reference,
)


def self_attention(query: Tensor, cache: Tensor, t: int, backend: str = "auto") -> Tensor:
    """Let each row attend to positions 0..t of its own dense cache.

    Args:
        query: `[rows, H, D]` of any floating dtype; inner dimensions contiguous.
        cache: `[rows, L, 2, Hkv, D]`, contiguous; keys at 0 and values at 1 of the third dimension.
        t: the newest position, below L.
        backend: `auto` (Triton on CUDA, else the reference), `triton` or `reference`.

    Returns:
        `[rows, H, D]`.

    Raises:
        ValueError: if shapes, dtypes, devices or the backend do not fit.
    """
    check_dense(query, cache, t)
    chosen = triton_or_reference(backend, query)
    if runs_plain(chosen):
        return attend_reference(query, cache[:, : t + 1])
    return torch.ops.grace.self_attention(query, cache, t, chosen)


def self_attention_fused(qkv: Tensor, cache: Tensor, t: int, backend: str = "auto") -> Tensor:
    """Write position t of a dense cache, then let each row attend to positions 0..t of it.

    Args:
        qkv: `[rows, (H + 2 Hkv) * D]`: the heads of queries, then of keys, then of values.
        cache: `[rows, L, 2, Hkv, D]`, contiguous. Position t is written.
        t: the position of the new token, below L.
        backend: as in `self_attention`.

    Returns:
        `[rows, H, D]`.

    Raises:
        ValueError: if shapes, dtypes, devices or the backend do not fit.
    """
    check_fused(qkv, cache, t)
    chosen = triton_or_reference(backend, qkv)
    if runs_plain(chosen):
        return fused_reference(qkv, cache, t)
    return torch.ops.grace.self_attention_fused(qkv, cache, t, chosen)


def self_attention_paged(
    qkv: Tensor, pool: Tensor, table: Tensor, t: int, backend: str = "auto", keep: bool = True
) -> Tensor:
    """Write each row's new block, then let it attend to the blocks of positions 0..t.

    Args:
        qkv: `[rows, (H + 2 Hkv) * D]`: the heads of queries, then of keys, then of values.
        pool: `[blocks, 2, Hkv, D]`, contiguous. Block `table[:, t]` of each row is written, but for
            `keep`.
        table: int32 `[rows, L]`, contiguous: the block of each position. Entries 0..t must lie
            in the pool; those at t must differ from each other and from all entries before t.
        t: the position of the new token, below L.
        backend: as in `self_attention`.
        keep: whether another position will follow. Otherwise nothing is written, and the entries
            at t mean nothing.

    Returns:
        `[rows, H, D]`.

    Raises:
        ValueError: if shapes, dtypes, devices or the backend do not fit.
    """
    check_paged(qkv, pool, table, t)
    chosen = triton_or_reference(backend, qkv)
    if runs_plain(chosen):
        return paged_reference(qkv, pool, table, t, keep)
    return torch.ops.grace.self_attention_paged(qkv, pool, table, t, chosen, keep)


def self_attention_paged_fp8(
    qkv: Tensor, pool: Tensor, table: Tensor, t: int, backend: str = "auto", keep: bool = True
) -> Fp8Rows:
    """Do what `self_attention_paged` does, and return its rows in FP8.

    They are those of `quantize_rows`, without a rounding to qkv's dtype before them where Hkv is a
    power of two so small that one program of the kernel has room for all heads of a row.

    Args:
        qkv: as in `self_attention_paged`, like all that follows.

    Returns:
        Values `[rows, H D]`, scales `[rows]`.

    Raises:
        ValueError: as in `self_attention_paged`.
    """
    check_paged(qkv, pool, table, t)
    chosen = triton_or_reference(backend, qkv)
    if runs_plain(chosen):
        return Fp8Rows(*paged_fp8_reference(qkv, pool, table, t, keep))
    return Fp8Rows(*torch.ops.grace.self_attention_paged_fp8(qkv, pool, table, t, chosen, keep))


def self_attention_from_table(
    queries: Tensor, pool: Tensor, table: Tensor, t: int, backend: str = "auto"
) -> Tensor:
    """Let each row's query, that of its block of position t, attend to its blocks 0..t.

    Args:
        queries: `[blocks, H, D]`, contiguous, any floating dtype.
        pool: `[blocks, 2, Hkv, D]`, contiguous. Nothing is written.
        table: int32 `[rows, L]`, contiguous: the block of each position. Entries 0..t must lie in
            the pool.
        t: the newest position, below L.
        backend: as in `self_attention`.

    Returns:
        `[rows, H, D]`.

    Raises:
        ValueError: if shapes, dtypes, devices or the backend do not fit.
    """
    check_from_table(queries, pool, table, t)
    chosen = triton_or_reference(backend, queries)
    if runs_plain(chosen):
        return from_table_reference(queries, pool, table, t)
    return torch.ops.grace.self_attention_from_table(queries, pool, table, t, chosen)


def self_attention_from_table_fp8(
    queries: Tensor, pool: Tensor, table: Tensor, t: int, backend: str = "auto"
) -> Fp8Rows:
    """Do what `self_attention_from_table` does, in FP8 as `self_attention_paged_fp8` does it.

    Args:
        queries: as in `self_attention_from_table`, like all that follows.

    Returns:
        Values `[rows, H D]`, scales `[rows]`.

    Raises:
        ValueError: as in `self_attention_from_table`.
    """
    check_from_table(queries, pool, table, t)
    chosen = triton_or_reference(backend, queries)
    if runs_plain(chosen):
        return Fp8Rows(*from_table_fp8_reference(queries, pool, table, t))
    rows = torch.ops.grace.self_attention_from_table_fp8(queries, pool, table, t, chosen)
    return Fp8Rows(*rows)


@torch.library.custom_op("grace::self_attention", mutates_args=())
def _self_attention(query: Tensor, cache: Tensor, t: int, backend: str) -> Tensor:
    if backend == "reference":
        return attend_reference(query, cache[:, : t + 1])
    from grace.kernels.self_attention.kernel import attend_triton

    return attend_triton(query, cache.flatten(0, 1), None, t, cache.shape[1], fused=False)


@torch.library.custom_op("grace::self_attention_fused", mutates_args=("cache",))
def _self_attention_fused(qkv: Tensor, cache: Tensor, t: int, backend: str) -> Tensor:
    if backend == "reference":
        return fused_reference(qkv, cache, t)
    from grace.kernels.self_attention.kernel import attend_triton

    query = qkv.unflatten(1, (-1, cache.shape[4]))
    return attend_triton(query, cache.flatten(0, 1), None, t, cache.shape[1], fused=True)


@torch.library.custom_op("grace::self_attention_paged", mutates_args=("pool",))
def _self_attention_paged(
    qkv: Tensor, pool: Tensor, table: Tensor, t: int, backend: str, keep: bool
) -> Tensor:
    if backend == "reference":
        return paged_reference(qkv, pool, table, t, keep)
    from grace.kernels.self_attention.kernel import attend_triton

    query = qkv.unflatten(1, (-1, pool.shape[3]))
    return attend_triton(query, pool, table, t, table.shape[1], fused=True, keep=keep)


@torch.library.custom_op("grace::self_attention_paged_fp8", mutates_args=("pool",))
def _self_attention_paged_fp8(
    qkv: Tensor, pool: Tensor, table: Tensor, t: int, backend: str, keep: bool
) -> tuple[Tensor, Tensor]:
    if backend == "reference":
        return paged_fp8_reference(qkv, pool, table, t, keep)
    from grace.kernels.self_attention.kernel import attend_fp8_triton

    query = qkv.unflatten(1, (-1, pool.shape[3]))
    return attend_fp8_triton(query, pool, table, t, table.shape[1], fused=True, keep=keep)


@torch.library.custom_op("grace::self_attention_from_table", mutates_args=())
def _self_attention_from_table(
    queries: Tensor, pool: Tensor, table: Tensor, t: int, backend: str
) -> Tensor:
    if backend == "reference":
        return from_table_reference(queries, pool, table, t)
    from grace.kernels.self_attention.kernel import attend_triton

    return attend_triton(queries, pool, table, t, table.shape[1], fused=False)


@torch.library.custom_op("grace::self_attention_from_table_fp8", mutates_args=())
def _self_attention_from_table_fp8(
    queries: Tensor, pool: Tensor, table: Tensor, t: int, backend: str
) -> tuple[Tensor, Tensor]:
    if backend == "reference":
        return from_table_fp8_reference(queries, pool, table, t)
    from grace.kernels.self_attention.kernel import attend_fp8_triton

    return attend_fp8_triton(queries, pool, table, t, table.shape[1], fused=False)


@_self_attention.register_fake
def _(query: Tensor, cache: Tensor, t: int, backend: str) -> Tensor:
    return query.new_empty(query.shape)


@_self_attention_fused.register_fake
def _(qkv: Tensor, cache: Tensor, t: int, backend: str) -> Tensor:
    return _heads_like(qkv, *cache.shape[3:])


@_self_attention_paged.register_fake
def _(qkv: Tensor, pool: Tensor, table: Tensor, t: int, backend: str, keep: bool) -> Tensor:
    return _heads_like(qkv, *pool.shape[2:])


@_self_attention_from_table.register_fake
def _(queries: Tensor, pool: Tensor, table: Tensor, t: int, backend: str) -> Tensor:
    return queries.new_empty((table.shape[0], *queries.shape[1:]))


@_self_attention_paged_fp8.register_fake
def _(
    qkv: Tensor, pool: Tensor, table: Tensor, t: int, backend: str, keep: bool
) -> tuple[Tensor, Tensor]:
    return _fp8_like(_heads_like(qkv, *pool.shape[2:]))


@_self_attention_from_table_fp8.register_fake
def _(queries: Tensor, pool: Tensor, table: Tensor, t: int, backend: str) -> tuple[Tensor, Tensor]:
    return _fp8_like(queries.new_empty((table.shape[0], *queries.shape[1:])))


def _fp8_like(heads: Tensor) -> tuple[Tensor, Tensor]:
    width = heads.shape[1] * heads.shape[2]
    values = heads.new_empty((len(heads), width), dtype=torch.float8_e4m3fn)
    return values, heads.new_empty(len(heads), dtype=torch.float32)


def _heads_like(qkv: Tensor, num_kv_heads: int, head_dim: int) -> Tensor:
    return qkv.new_empty((qkv.shape[0], qkv.shape[1] // head_dim - 2 * num_kv_heads, head_dim))
