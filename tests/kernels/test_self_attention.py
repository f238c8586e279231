"""Self-attention over short prefixes: the references against loops, and what is refused."""

import math

import pytest
import torch
from attention_cases import Draw
from hypothesis import given
from hypothesis import strategies as st

from grace.kernels.block_reorder import block_reorder, start_blocks
from grace.kernels.self_attention import (
    self_attention,
    self_attention_from_table,
    self_attention_from_table_fp8,
    self_attention_fused,
    self_attention_paged,
    self_attention_paged_fp8,
)

sizes = st.integers(1, 4)


@given(
    seed=st.integers(0, 2**32), rows=sizes, groups=sizes, kv_heads=sizes, length=st.integers(1, 8)
)
def test_it_is_softmax_over_the_prefix(seed, rows, groups, kv_heads, length):
    draw = Draw(seed, "cpu", torch.float64)
    head_dim, t = 5, int(draw.integers(0, length, 1))
    query = draw.normal(rows, groups * kv_heads, head_dim)
    cache = draw.normal(rows, length, 2, kv_heads, head_dim)
    cache[:, t + 1 :] = torch.nan
    got = self_attention(query, cache, t)
    for r in range(rows):
        for h in range(groups * kv_heads):
            keys, values = cache[r, : t + 1, :, h // groups].unbind(1)
            scores = [float(query[r, h] @ key) / math.sqrt(head_dim) for key in keys]
            shares = [math.exp(score - max(scores)) for score in scores]
            wanted = sum(s / sum(shares) * value for s, value in zip(shares, values, strict=True))
            torch.testing.assert_close(got[r, h], wanted, rtol=1e-12, atol=1e-12)


@given(seed=st.integers(0, 2**32), batch=st.integers(1, 3), widths=st.lists(sizes, max_size=5))
def test_paged_beams_equal_beams_whose_caches_are_copied(seed, batch, widths):
    """Through a whole search: blocks follow their parents as copies of keys and values would."""
    draw = Draw(seed, "cpu", torch.float64)
    heads, kv_heads, head_dim, widths = 4, 2, 3, [1, *widths]
    pool = torch.full((batch * sum(widths), 2, kv_heads, head_dim), torch.nan).double()
    cache = torch.full((batch, len(widths), 2, kv_heads, head_dim), torch.nan).double()
    table, first_block = start_blocks(batch, len(widths), "cpu"), 0
    for t, width in enumerate(widths):
        if t > 0:
            parents = draw.integers(0, widths[t - 1], batch, width)
            first_block += batch * widths[t - 1]
            table = block_reorder(table, parents, t, first_block)
            offsets = torch.arange(batch)[:, None] * widths[t - 1]
            cache = cache[(parents + offsets).flatten()]
        qkv = draw.normal(batch * width, (heads + 2 * kv_heads) * head_dim)
        dense = self_attention_fused(qkv, cache, t)
        paged = self_attention_paged(qkv, pool, table, t)
        assert not dense.isnan().any()
        torch.testing.assert_close(paged, dense, rtol=1e-13, atol=1e-13)


QUERY, CACHE = torch.zeros(3, 4, 8), torch.zeros(3, 5, 2, 2, 8)
QKV, POOL = torch.zeros(3, 64), torch.zeros(15, 2, 2, 8)
TABLE = torch.zeros(3, 5, dtype=torch.int32)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: self_attention(QUERY.int(), CACHE, 0), "query must be floating point"),
        (lambda: self_attention(QUERY[0], CACHE, 0), r"query must be \[rows, H, D\]"),
        (lambda: self_attention(QUERY[:, :3], CACHE, 0), "multiple of the 2 key heads, got 3"),
        (lambda: self_attention(QUERY, CACHE[:2], 0), r"cache must be float32 \[3, 5, 2, 2, 8\]"),
        (lambda: self_attention(QUERY, CACHE[:, 1:], 0), "cache must be contiguous"),
        (lambda: self_attention(QUERY, CACHE, 5), "t must be from 0 to 4, got 5"),
        (lambda: self_attention(QUERY, CACHE, 0, "cuda"), "backend must be auto, triton or ref"),
        (lambda: self_attention_fused(QKV[0], CACHE, 0), r"qkv must be \[rows, \(H \+ 2 Hkv\)"),
        (lambda: self_attention_fused(QKV[:, :60], CACHE, 0), "a multiple of the head size 8"),
        (lambda: self_attention_fused(QKV[:, :32], CACHE, 0), "key heads, got 0"),
        (lambda: self_attention_fused(QKV.half(), CACHE, 0), "cache must be float16"),
        (lambda: self_attention_fused(QKV, CACHE, -1), "t must be from 0 to 4, got -1"),
        (lambda: self_attention_paged(QKV, POOL[:, 1:], TABLE, 0), "pool must be contiguous"),
        (
            lambda: self_attention_paged(QKV, POOL, TABLE.long(), 0),
            r"table must be int32 \[rows, L\]",
        ),
        (lambda: self_attention_paged(QKV, POOL, TABLE[:2], 0), r"table must be int32 \[3, L\]"),
        (lambda: self_attention_paged(QKV, POOL, TABLE.T.contiguous().T, 0), "contiguous and on"),
        (lambda: self_attention_paged(QKV, POOL, TABLE, 5), "t must be from 0 to 4, got 5"),
        (lambda: self_attention_paged_fp8(QKV, POOL, TABLE, 5), "t must be from 0 to 4, got 5"),
        (lambda: self_attention_paged_fp8(QKV.half(), POOL, TABLE, 0), "pool must be float16"),
        (lambda: self_attention_from_table(QUERY, POOL, TABLE, 0), "pool must be float32"),
        (lambda: self_attention_from_table_fp8(QUERY[0], POOL, TABLE, 0), "queries must be"),
    ],
)
def test_what_does_not_fit_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()
