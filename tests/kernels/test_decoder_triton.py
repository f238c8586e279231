"""The decoder's kernels in Triton and on a GPU equal the references; graphs stay whole."""

import itertools

import pytest
import torch
from attention_cases import Draw, check_cross_attention, check_many, check_small
from interpreted import run_interpreted

from grace.kernels.block_reorder import block_reorder, start_blocks
from grace.kernels.cross_attention import cross_attention
from grace.kernels.rms_norm import add_rms_norm
from grace.kernels.self_attention import self_attention_paged
from grace.kernels.swiglu import swiglu
from grace.kernels.tuning import pinned

BATCH, WIDTHS, HEADS, HEAD_DIM, POSITIONS = 2, (1, 5, 9), 4, 32, 12


def gpu(test):
    """Mark a test that needs a CUDA device."""
    skip = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
    return pytest.mark.gpu(skip(test))


def test_interpreted_on_the_cpu():
    run_interpreted("""
from attention_cases import *
from fp8_cases import mend_interpreter
mend_interpreter()
check_small("triton")
""")


def test_the_references_agree_with_float64():
    check_small("reference")
    check_small("auto", dtype=torch.bfloat16)


@gpu
@pytest.mark.parametrize("seed", range(8))
def test_random_sizes_on_a_gpu(seed):
    dtypes = (torch.bfloat16, torch.float32, torch.bfloat16, torch.float16)
    check_many("triton", "cuda", dtypes[seed % 4], seed)


@gpu
@pytest.mark.parametrize("backend", ["cudnn", "flash", "efficient"])
@pytest.mark.parametrize("ragged", [False, True], ids=["full", "ragged"])
def test_torchs_attention_on_a_gpu(backend, ragged):
    if backend == "flash" and ragged:
        pytest.skip("flash takes no lengths")
    for seed, (batch, beams, heads, positions, head_dim) in enumerate(
        [(2, 1, (4, 4), 128, 64), (3, 65, (8, 2), 100, 128), (2, 512, (16, 16), 128, 128)]
    ):
        draw = Draw(seed, "cuda", torch.bfloat16)
        check_cross_attention(draw, backend, batch, beams, heads, positions, head_dim, ragged)


def make_inputs(device, dtype):
    draw = Draw(0, device, dtype)
    kv = (BATCH, HEADS, POSITIONS, HEAD_DIM)
    return {
        "steps": [
            draw.normal(BATCH * width, 3 * HEADS * HEAD_DIM) for width in WIDTHS
        ],
        "parents": [
            draw.integers(0, before, BATCH, width)
            for before, width in itertools.pairwise(WIDTHS)
        ],
        "context": (draw.normal(*kv), draw.normal(*kv)),
        "weight": draw.normal(HEADS * HEAD_DIM),
        "pool": torch.zeros(
            (BATCH * sum(WIDTHS), 2, HEADS, HEAD_DIM), dtype=dtype, device=device
        ),
    }  # fmt: skip


def decode(steps, parents, context, weight, pool):
    """A decoder's kernels over all steps, without its matmuls."""
    table, first_block, outs = start_blocks(BATCH, len(WIDTHS), pool.device), 0, []
    for t, width in enumerate(WIDTHS):
        if t > 0:
            first_block += BATCH * WIDTHS[t - 1]
            table = block_reorder(table, parents[t - 1], t, first_block)
        heads = self_attention_paged(steps[t], pool, table, t)
        crossed = cross_attention(heads.unflatten(0, (BATCH, width)), *context)
        normed, total = add_rms_norm(crossed.flatten(2), heads.view(BATCH, width, -1), weight, 1e-6)
        outs.append(swiglu(torch.cat([normed, total], -1)))
    return outs


def test_a_compiled_loop_is_one_graph():
    inputs = make_inputs("cpu", torch.float32)
    wanted = decode(**inputs)
    pool = inputs["pool"].clone()
    inputs["pool"].zero_()
    got = torch.compile(decode, backend="aot_eager", fullgraph=True)(**inputs)
    for one, other in zip(got, wanted, strict=True):
        assert torch.equal(one, other)
    assert torch.equal(inputs["pool"], pool)


@gpu
def test_a_compiled_loop_replays_from_a_cuda_graph():
    inputs = make_inputs("cuda", torch.bfloat16)
    compiled = torch.compile(decode, fullgraph=True)
    with pinned():
        wanted = decode(**inputs)
        for one, other in zip(compiled(**inputs), wanted, strict=True):
            torch.testing.assert_close(one, other)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            captured = compiled(**inputs)
    graph.replay()
    first = [tensor.clone() for tensor in captured]
    for one, other in zip(first, wanted, strict=True):
        torch.testing.assert_close(one, other)
    for _ in range(100):
        inputs["pool"].fill_(torch.nan)
        for tensor in captured:
            tensor.fill_(torch.nan)
        graph.replay()
        assert all(torch.equal(one, other) for one, other in zip(captured, first, strict=True))


def operations():
    draw = Draw(1, "cpu", torch.float32)
    qkv, pool = draw.normal(3, 8 * 4), draw.normal(12, 2, 2, 4)
    query, table = draw.normal(3, 4, 4), torch.arange(12, dtype=torch.int32).view(3, 4)
    context, weight = draw.normal(1, 2, 5, 4), draw.normal(32)
    parents = torch.tensor([[2, 0, 1, 1]])
    return {
        "self_attention": (query, pool.view(3, 4, 2, 2, 4), 1),
        "self_attention_fused": (qkv, pool.view(3, 4, 2, 2, 4), 1),
        "self_attention_paged": (qkv, pool, table, 1),
        "self_attention_paged_fp8": (qkv, pool, table, 1),
        "self_attention_from_table_fp8": (draw.normal(12, 4, 4), pool, table, 1),
        "block_reorder": (table, parents, 2, 6),
        "cross_attention": (query[None], context, context, None),
        "cross_attention_fp8": (query[None], context, context, torch.ones(1), None),
        "rms_norm": (qkv, weight, 1e-6),
        "add_rms_norm": (qkv, qkv.clone(), weight, 1e-6),
        "swiglu": (qkv,),
    }


@pytest.mark.parametrize("name", operations())
def test_an_operation_does_what_it_declares(name):
    """Its schema tells what it changes, and its fake kernel what it returns."""
    checks = ("test_schema", "test_faketensor", "test_aot_dispatch_static")
    arguments = [*operations()[name], "reference"]
    last = {"self_attention_paged": True, "self_attention_paged_fp8": True, "block_reorder": None}
    if name in last:
        arguments.append(last[name])  # whether the block is kept; blocks of their own
    torch.library.opcheck(
        getattr(torch.ops.grace, name).default, tuple(arguments), test_utils=checks
    )
