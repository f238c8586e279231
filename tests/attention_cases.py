"""Random inputs for the decoder's kernels, and the checks that every backend must pass.

The oracle is the reference on the same inputs in float64. Memory that nobody wrote is NaN: cache
slots past t, context past a length, and everything a kernel allocates.
"""

import contextlib
import itertools

import torch

from grace.kernels.block_reorder import block_reorder, start_blocks
from grace.kernels.cross_attention import cross_attention, cross_attention_fp8, value_scales
from grace.kernels.fp8_rows.rows import Fp8Rows
from grace.kernels.rms_norm import add_rms_norm, rms_norm
from grace.kernels.self_attention import (
    self_attention,
    self_attention_from_table,
    self_attention_from_table_fp8,
    self_attention_fused,
    self_attention_paged,
    self_attention_paged_fp8,
)
from grace.kernels.swiglu import swiglu
from grace.kernels.tuning import pinned

TOLERANCES = {torch.float64: 1e-12, torch.float32: 2e-5, torch.float16: 3e-3, torch.bfloat16: 2e-2}
HEADS = ((1, 1), (2, 2), (3, 1), (4, 2), (6, 3), (16, 16), (32, 4))


@contextlib.contextmanager
def poisoned():
    """Fill new tensors with NaN where torch leaves them uninitialised."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)


def assert_close(got, exact, dtype):
    assert got.dtype == dtype
    assert got.shape == exact.shape
    assert got.is_contiguous()
    tolerance = TOLERANCES[dtype]
    torch.testing.assert_close(got.double(), exact.double(), rtol=tolerance, atol=tolerance)


class Draw:
    """Random tensors of one dtype on one device."""

    def __init__(self, seed, device, dtype):
        self.random = torch.Generator().manual_seed(seed)
        self.device, self.dtype = device, dtype

    def normal(self, *shape):
        return torch.randn(shape, generator=self.random).to(self.device, self.dtype)

    def integers(self, low, high, *shape):
        return torch.randint(low, high, shape, generator=self.random).to(self.device)

    def choice(self, options):
        return options[int(self.integers(0, len(options), 1))]

    def pinned(self):
        """Let the kernels use any of their candidates."""
        return pinned(lambda candidates: self.choice(candidates))


def check_self_attention(draw, backend, rows, heads, head_dim, max_length):
    """All three versions at a random position, dense and paged, against each other and float64."""
    num_heads, num_kv_heads = heads
    t = int(draw.integers(0, max_length, 1))
    qkv = draw.normal(rows, (num_heads + 2 * num_kv_heads) * head_dim)
    nan = {"fill_value": torch.nan, "dtype": draw.dtype, "device": draw.device}
    cache = torch.full((rows, max_length, 2, num_kv_heads, head_dim), **nan)
    cache[:, :t] = draw.normal(rows, t, *cache.shape[2:])
    # The same positions in a pool: prefixes shuffled and partly shared, other blocks NaN.
    blocks = 3 * rows * max_length
    pool = torch.full((blocks, *cache.shape[2:]), **nan)
    order = torch.randperm(blocks, generator=draw.random)[: rows * max_length].to(draw.device)
    table = order.reshape(rows, max_length).int()
    table[rows // 2 :, :t] = table[: rows - rows // 2, :t].clone()
    cache[rows // 2 :, :t] = cache[: rows - rows // 2, :t].clone()
    pool[table[:, :t].long()] = cache[:, :t]
    table[:, t + 1 :] = -1

    exact_cache = cache.double()
    exact = self_attention_fused(qkv.double(), exact_cache, t, "reference")
    paged_pool, fused_cache = pool.clone(), cache.clone()
    with poisoned(), draw.pinned():
        paged = self_attention_paged(qkv, paged_pool, table, t, backend)
        fused = self_attention_fused(qkv, fused_cache, t, backend)
        query = qkv.unflatten(1, (-1, head_dim))[:, :num_heads]
        dense = self_attention(query, fused_cache, t, backend)
        queries = draw.normal(blocks, num_heads, head_dim)
        queries[table[:, t].long()] = query
        from_table = self_attention_from_table(queries, paged_pool, table, t, backend)
    for got in (paged, fused, dense, from_table):
        assert_close(got, exact, draw.dtype)
    narrow_pool = pool.clone()
    with poisoned(), draw.pinned():
        narrow = self_attention_paged_fp8(qkv, narrow_pool, table, t, backend)
        again = self_attention_from_table_fp8(queries, paged_pool, table, t, backend)
    for got in (narrow, again):
        check_fp8(got, exact.flatten(1), draw.dtype)
    torch.testing.assert_close(narrow_pool, paged_pool, rtol=0, atol=0, equal_nan=True)
    # What nothing follows is not written, and needs no block. It is another kernel, and every call
    # draws its configuration, so last bits may differ.
    last_pool, last_table = pool.clone(), table.clone()
    last_table[:, t] = -1
    with poisoned(), draw.pinned():
        last = self_attention_paged(qkv, last_pool, last_table, t, backend, keep=False)
        narrow_last = self_attention_paged_fp8(qkv, last_pool, last_table, t, backend, keep=False)
    assert_close(last, exact, draw.dtype)
    check_fp8(narrow_last, exact.flatten(1), draw.dtype)
    torch.testing.assert_close(last_pool, pool, rtol=0, atol=0, equal_nan=True)
    # Written: position t of each row, bit for bit, and nothing else.
    cache[:, t] = exact_cache[:, t].to(draw.dtype)
    pool[table[:, t].long()] = cache[:, t]
    torch.testing.assert_close(fused_cache, cache, rtol=0, atol=0, equal_nan=True)
    torch.testing.assert_close(paged_pool, pool, rtol=0, atol=0, equal_nan=True)

    # A row of NaN stays alone.
    if rows > 1 and backend != "reference":
        lost = int(draw.integers(0, rows, 1))
        qkv[lost] = torch.nan
        with draw.pinned():
            again = self_attention_paged(qkv, paged_pool.clone(), table, t, backend)
            narrow = self_attention_paged_fp8(qkv, paged_pool.clone(), table, t, backend)
        assert again[lost].isnan().all()
        assert narrow.float()[lost].isnan().all()
        others = torch.arange(rows, device=draw.device) != lost
        assert_close(again[others], exact[others], draw.dtype)
        some = Fp8Rows(narrow.values[others], narrow.scales[others])
        check_fp8(some, exact.flatten(1)[others], draw.dtype)


def check_fp8(got, exact, dtype):
    """Rows by their largest number, each number within half a step and what dtype rounds."""
    assert (got.values.dtype, got.scales.dtype) == (torch.float8_e4m3fn, torch.float32)
    assert got.values.shape == exact.shape
    assert got.values.is_contiguous()
    tolerance, scales = TOLERANCES[dtype], exact.abs().amax(1) / 448
    torch.testing.assert_close(got.scales.double(), scales, rtol=2 * tolerance, atol=tolerance)
    allowed = exact.abs() / 16 + scales[:, None] * 2.0**-10 + tolerance
    assert ((got.float().double() - exact).abs() <= allowed).all()


def check_cross_attention(draw, backend, batch, beams, heads, positions, head_dim, ragged):
    """Beams as queries against float64, with keys laid out as a projection leaves them."""
    num_heads, num_kv_heads = heads
    query = draw.normal(batch, beams, num_heads, head_dim)
    key, value = draw.normal(2, batch, positions, num_kv_heads, head_dim).transpose(2, 3)
    lengths = draw.integers(1, positions + 1, batch).int() if ragged else None
    exact = cross_attention(*(x.double() for x in (query, key, value)), lengths, "reference")
    if ragged:
        past = torch.arange(positions, device=draw.device) >= lengths[:, None, None]
        key, value = (x.masked_fill(past[..., None], torch.nan) for x in (key, value))
    with poisoned(), draw.pinned():
        got = cross_attention(query, key, value, lengths, backend)
    assert_close(got, exact, draw.dtype)
    if backend in ("triton", "reference", "auto"):
        scales = value_scales(value, lengths)
        with poisoned(), draw.pinned():
            narrow = cross_attention_fp8(query, key, value, scales, lengths, backend)
        assert torch.equal(narrow.scales, scales.repeat_interleave(beams))
        check_narrow_context(narrow, exact, draw.dtype)

    # A request of NaN stays alone, and a row of NaN.
    if batch > 1:
        query[0], key[0], value[0] = torch.nan, torch.nan, torch.nan
        query[1, 0] = torch.nan
        with draw.pinned():
            again = cross_attention(query, key, value, lengths, backend)
        assert again[1, 0].isnan().all()
        assert_close(again[1:].flatten(0, 1)[1:], exact[1:].flatten(0, 1)[1:], draw.dtype)
        if backend in ("triton", "reference", "auto"):
            scales = value_scales(value, lengths)
            assert scales.isnan().nonzero().tolist() == [[0]]
            with draw.pinned():
                narrow = cross_attention_fp8(query, key, value, scales, lengths, backend)
            assert narrow.float()[:beams].isnan().all()
            others = Fp8Rows(narrow.values[beams + 1 :], narrow.scales[beams + 1 :])
            check_narrow_context(others, exact[1:].flatten(0, 1)[1:], draw.dtype)


def check_narrow_context(got, exact, dtype):
    """Each number within half a step of its row's scale and what dtype rounds."""
    assert (got.values.dtype, got.scales.dtype) == (torch.float8_e4m3fn, torch.float32)
    assert got.values.is_contiguous()
    exact = exact.reshape(len(got.scales), -1)
    allowed = exact.abs() / 16 + got.scales[:, None] * 2.0**-10 + TOLERANCES[dtype]
    assert got.values.shape == exact.shape
    assert ((got.float().double() - exact).abs() <= allowed).all()


def check_block_reorder(draw, backend, batch, widths, max_length):
    """Steps of re-ordering: the blocks of each beam are those that its ancestors got, in order."""
    table = start_blocks(batch * widths[0], max_length, draw.device)
    history = [[row] for row in range(batch * widths[0])]
    first_block = batch * widths[0]
    for t, (before, width) in enumerate(itertools.pairwise(widths), start=1):
        parents = draw.integers(0, before, batch, width)
        own = draw.integers(0, 1000, batch, width) if t % 2 else None
        with poisoned():
            table = block_reorder(table, parents, t, first_block, backend, own)
        blocks = range(batch * width) if own is None else own.flatten().tolist()
        history = [
            [*history[row // width * before + parent], first_block + block]
            for row, (parent, block) in enumerate(
                zip(parents.flatten().tolist(), blocks, strict=True)
            )
        ]
        padded = [row + [-1] * (max_length - t - 1) for row in history]
        assert table.tolist() == padded
        assert table.dtype == torch.int32
        first_block += batch * width


def check_rms_norm(draw, backend, shape):
    x, residual = draw.normal(*shape), draw.normal(*shape)
    weight = draw.normal(shape[-1])
    with poisoned(), draw.pinned():
        alone = rms_norm(x, weight, 1e-5, backend)
        normed, total = add_rms_norm(x, residual, weight, 1e-5, backend)
    assert torch.equal(total, x + residual)
    assert_close(alone, rms_norm(x.double(), weight.double(), 1e-5, "reference"), draw.dtype)
    assert_close(normed, rms_norm(total.double(), weight.double(), 1e-5, "reference"), draw.dtype)


def check_swiglu(draw, backend, shape):
    gate_up = draw.normal(*shape)
    for interleaved in (False, True):
        with poisoned(), draw.pinned():
            got = swiglu(gate_up, backend, interleaved)
        exact = swiglu(gate_up.double(), "reference", interleaved)
        assert_close(got, exact, draw.dtype)


def check_small(backend, device="cpu", dtype=torch.float32):
    """Every kernel at sizes that the interpreter can bear."""
    for seed, (rows, heads, head_dim, max_length) in enumerate(
        [
            (5, (4, 2), 32, 4),
            (3, (2, 2), 48, 1),
            (7, (3, 1), 32, 8),
            (1, (1, 1), 40, 3),
            (4, (3, 3), 32, 2),
        ]
    ):
        check_self_attention(Draw(seed, device, dtype), backend, rows, heads, head_dim, max_length)
    for seed, (batch, beams, heads, positions, head_dim, ragged) in enumerate(
        [
            (2, 5, (4, 2), 20, 40, True),
            (1, 1, (2, 2), 1, 32, False),
            (2, 17, (1, 1), 64, 32, True),
            (1, 33, (2, 1), 37, 32, False),
        ]
    ):
        check_cross_attention(
            Draw(seed, device, dtype), backend, batch, beams, heads, positions, head_dim, ragged
        )
    for seed, shape in enumerate([(5, 48), (1, 1), (2, 3, 33)]):
        check_rms_norm(Draw(seed, device, dtype), backend, shape)
        check_swiglu(Draw(seed, device, dtype), backend, (*shape[:-1], 2 * shape[-1]))
    check_block_reorder(Draw(0, device, dtype), backend, 2, (1, 3, 5, 2), 5)


def check_many(backend, device, dtype, seed):
    """Every kernel at random sizes: odd rows and heads, one beam, one to 1,024 positions."""
    draw = Draw(seed, device, dtype)
    heads = draw.choice(HEADS)
    head_dim = draw.choice((32, 40, 64, 96, 128, 192, 256))
    rows = draw.choice((1, 2, 63, 123, 1000, 2049))
    check_self_attention(draw, backend, rows, heads, head_dim, draw.choice((1, 2, 4, 5, 8)))
    batch, beams = draw.choice(((1, 1), (3, 1), (2, 7), (3, 63), (2, 500), (5, 128), (1, 1025)))
    positions = draw.choice((1, 2, 15, 16, 63, 100, 128, 129, 500, 1024))
    check_cross_attention(
        draw, backend, batch, beams, heads, positions, head_dim, draw.choice((True, False))
    )
    width = draw.choice((1, 7, 64, 1000, 1024, 4864, 5001))
    check_rms_norm(draw, backend, (rows, width))
    check_swiglu(draw, backend, (rows, 2 * width))
    check_block_reorder(draw, backend, 3, (1, 7, 300, 64, 65), 8)
