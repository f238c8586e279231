"""The native and the GPU selection against the plain torch specification, bit for bit.

Triton's kernels run interpreted on a CPU, in a process of their own, and for real where there is a
GPU.
"""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from interpreted import run_interpreted
from select_cases import (
    LOGITS,
    OFFSETS,
    assert_same,
    case,
    check_random,
    check_shapes_that_defeat_cuts,
    check_step,
    with_bits,
)

from grace.index.trie import build_trie
from grace.kernels.constrained_select import Workspace, constrained_select
from grace.kernels.constrained_select.tiles import choose_tiles, num_bytes

WIDTHS = [1, 2, 31, 33, 129, 513, 1024]


@given(
    seed=st.integers(0, 2**32),
    batch=st.sampled_from([1, 2, 16, 32]),
    beams=st.sampled_from([1, 2, 33, 129]),
    vocab=st.sampled_from([2, 5, 64, 513]),
    levels=st.integers(1, 4),
    coarse=st.booleans(),
    width=st.sampled_from(WIDTHS),
    bits=st.booleans(),
    offsets=st.sampled_from(OFFSETS),
    logits=st.sampled_from(LOGITS),
)
def test_native_equals_reference(
    seed, batch, beams, vocab, levels, coarse, width, bits, offsets, logits
):
    step = case(seed, batch, beams, vocab, levels, coarse)
    step = with_bits(step, seed) if bits else step
    step |= {
        "child_offsets": step["child_offsets"].to(offsets),
        "columns": step["columns"].to(logits),
    }
    native = constrained_select(**step, width=width, backend="native")
    assert_same(native, constrained_select(**step, width=width, backend="reference"))


@given(
    seed=st.integers(0, 2**32),
    batch=st.sampled_from([1, 2, 16, 33]),
    beams=st.sampled_from([1, 33]),
    vocab=st.sampled_from([2, 64, 513]),
    levels=st.integers(1, 4),
    spare=st.integers(0, 2),
    narrow=st.booleans(),
    width=st.sampled_from(WIDTHS),
)
def test_a_bit_per_child_says_the_same_as_a_word_per_node(
    seed, batch, beams, vocab, levels, spare, narrow, width
):
    step = case(seed, batch, beams, vocab, levels, coarse=True)
    rng = np.random.default_rng(seed)
    offsets = step["child_offsets"]
    most = int(offsets.diff().max())
    shape = (batch, beams, -(-most // 32) + spare)
    allowed = torch.from_numpy(rng.integers(-(2**31), 2**31, shape).astype(np.int32))
    chosen = [
        constrained_select(
            **step | {"words": None, "child_offsets": bounds},
            width=width, backend=backend, allowed=allowed,
        )
        for backend in ("native", "reference")
        for bounds in (offsets, offsets.int() if narrow else offsets)
    ]  # fmt: skip
    for other in chosen[1:]:
        assert_same(chosen[0], other)
    if batch > 32:
        return
    words = torch.zeros(int(step["child_tokens"].numel()) + 1, dtype=torch.int32)
    for b, nodes in enumerate(step["nodes"].tolist()):
        for m, node in enumerate(nodes):
            for j in range(int(offsets[node + 1] - offsets[node]) if node >= 0 else 0):
                bit = int(allowed[b, m, j // 32]) >> j % 32 & 1
                words[int(offsets[node]) + j + 1] |= np.uint32(bit << b).astype(np.int32).item()
    assert_same(chosen[0], constrained_select(**step | {"words": words}, width=width))


def one_node(tokens, logits, words=None, scores=0.0):
    """One beam at the root of a trie of one level."""
    trie, _ = build_trie(np.array(tokens, np.int32)[:, None])
    columns = torch.tensor([[logits]])
    return {
        "columns": columns,
        "logsumexp": torch.zeros(1, 1, dtype=torch.float64),
        "scores": torch.tensor([[scores]]),
        "nodes": torch.zeros(1, 1, dtype=torch.int64),
        "child_offsets": trie.child_offsets,
        "child_tokens": trie.child_tokens,
        "words": words,
    }


@pytest.mark.parametrize("backend", ["native", "reference"])
def test_ties_break_by_node_and_missing_children_leave_dead_slots(backend):
    chosen = constrained_select(
        **one_node([1, 2, 4], [9.0, 1.0, 1.0, 9.0, 1.0]), width=5, backend=backend
    )
    assert chosen.tokens.tolist() == [[1, 2, 4, 0, 0]]
    assert chosen.nodes.tolist() == [[1, 2, 3, -1, -1]]
    assert chosen.scores.tolist() == [[1.0, 1.0, 1.0, -torch.inf, -torch.inf]]


@pytest.mark.parametrize("backend", ["native", "reference"])
def test_minus_infinity_is_never_chosen(backend):
    chosen = constrained_select(
        **one_node([0, 1], [-torch.inf, -torch.inf]), width=2, backend=backend
    )
    assert chosen.nodes.tolist() == [[-1, -1]]


@pytest.mark.parametrize("backend", ["native", "reference"])
def test_the_last_bit_of_a_word_is_a_request_like_others(backend):
    step = one_node([0, 1], [0.0, 1.0])
    wide = {k: v.expand(32, *v.shape[1:]) for k, v in step.items()
            if k in ("columns", "logsumexp", "scores", "nodes")}  # fmt: skip
    words = torch.tensor([-1, -(2**31), 2**30], dtype=torch.int32)
    chosen = constrained_select(**step | wide | {"words": words}, width=1, backend=backend)
    assert chosen.nodes[31].tolist() == [1]
    assert chosen.nodes[30].tolist() == [2]
    assert (chosen.nodes[:30] == -1).all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"columns": torch.zeros(1, 2)}, "columns must be float32, bfloat16"),
        (
            {"columns": torch.zeros(1, 1, 2, dtype=torch.float64)},
            "columns must be float32, bfloat16",
        ),
        ({"scores": torch.zeros(1, 2)}, r"scores must be float32 \[1, 1\]"),
        ({"logsumexp": torch.zeros(1, 1)}, "logsumexp must be float64"),
        ({"nodes": torch.zeros(1, 1)}, "nodes must be int64"),
        ({"words": torch.zeros(3)}, "words must be int32"),
        ({"allowed": torch.zeros(1, 1, 1)}, r"allowed must be int32 \[1, 1, words\]"),
        ({"allowed": torch.zeros(2, 1, 1, dtype=torch.int32)}, "allowed must be int32"),
        (
            {
                "allowed": torch.zeros(1, 1, 1, dtype=torch.int32),
                "words": torch.zeros(3, dtype=torch.int32),
            },
            "words and allowed",
        ),
        ({"width": 0}, "width must be at least 1"),
        ({"backend": "cuda"}, "backend must be"),
    ],
)
def test_what_does_not_fit_is_refused(change, message):
    step = one_node([0, 1], [0.0, 1.0]) | {"width": 1}
    with pytest.raises(ValueError, match=message):
        constrained_select(**step | change)


def test_a_compiled_graph_holds_it_whole():
    step = case(1, batch=2, beams=5, vocab=33, levels=3, coarse=False)
    compiled = torch.compile(constrained_select, fullgraph=True, backend="eager")
    assert_same(compiled(**step, width=9), constrained_select(**step, width=9))


@given(
    beams=st.integers(1, 5000),
    width=st.integers(1, 5000),
    max_children=st.integers(1, 200_000),
)
def test_tiles_cover_all_children(beams, width, max_children):
    tiles = choose_tiles(beams, width, max_children)
    share = tiles.groups // tiles.splits
    assert share >= 1
    assert share <= tiles.columns
    assert tiles.group_children * tiles.groups >= max_children
    assert tiles.ranked >= width
    assert tiles.gather_rows * tiles.gather_columns == 512


def test_buffers_do_not_overlap():
    tiles = choose_tiles(33, 129, 77)
    memory = Workspace(num_bytes(tiles, 3), "cpu")
    buffers = memory.buffers(tiles, 3)
    for number, (name, (dtype, shape)) in enumerate(tiles.sizes(3).items()):
        assert buffers[name].dtype == dtype
        assert buffers[name].shape == shape
        buffers[name].fill_(number)
    assert all((buffer == number).all() for number, buffer in enumerate(buffers.values()))


def test_a_workspace_that_is_too_small_is_refused():
    with pytest.raises(ValueError, match=r"workspace must have .* bytes for 2 requests, 8 beams"):
        Workspace(100, "cpu").buffers(choose_tiles(8, 16, 32), 2)


INTERPRETED = {
    "random": "check_random('cpu', range(10), (1, 2, 3), (1, 2, 33), (2, 5, 64, 300), (1, 31, 33))",
    "cuts": "check_shapes_that_defeat_cuts('cpu', 3, 70, (1, 33))",
    "signs": "check_signs_and_holes('cpu')",
}


@pytest.mark.parametrize("check", INTERPRETED)
def test_triton_interpreted_on_the_cpu(check):
    run_interpreted(f"from select_cases import *; {INTERPRETED[check]}")


on_gpu = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
]
AT_THRESHOLDS = (1, 31, 32, 33, 127, 128, 129, 511, 512, 513, 1023, 1024, 1025, 2048)


def on_cuda(selection):
    return type(selection)(*(tensor.cuda() for tensor in vars(selection).values()))


@pytest.mark.parametrize("part", range(4))
class TestOnGpu:
    pytestmark = on_gpu

    def test_random_steps(self, part):
        seeds = range(part * 8, part * 8 + 8)
        check_random(
            "cuda", seeds, (1, 2, 16, 32), (1, 2, 31, 33, 129, 1023), (2, 5, 64, 513, 1000),
            AT_THRESHOLDS, most=60_000,
        )  # fmt: skip

    def test_many_children(self, part):
        vocab = (8192, 8193, 32_001, 150_001)[part]
        for seed in range(4):
            check_random(
                "cuda", [part * 4 + seed], (1, 2), (1, 3, 40), (vocab,), (1, 33, 513, 1024),
                most=400_000,
            )  # fmt: skip

    def test_shapes_that_defeat_cuts(self, part):
        beams, children = ((1, 4097), (7, 700), (300, 300), (1025, 67))[part]
        check_shapes_that_defeat_cuts("cuda", beams, children, AT_THRESHOLDS)


@pytest.mark.parametrize("seed", range(3))
class TestGraphOnGpu:
    pytestmark = on_gpu

    def prepared(self, seed):
        """Steps of one shape over one trie, one of them on the device, its memory and result."""
        steps = [case(seed * 10, 16, 513, 512, 3, coarse=False, most=300_000)]
        for other in range(1, 4):
            order = torch.randperm(513, generator=torch.Generator().manual_seed(other))
            moved = {name: steps[0][name][:, order] for name in ("nodes", "scores", "logsumexp")}
            steps.append(steps[0] | moved | {"columns": steps[0]["columns"][:, order].contiguous()})
            steps[-1]["scores"] = steps[-1]["scores"] * other
        static = {k: v if v is None else v.cuda() for k, v in steps[0].items()}
        workspace = Workspace.for_steps(16, [(513, 777, 512)], "cuda")
        return steps, static, workspace

    def test_a_thousand_replays_see_new_data_and_give_the_same_bits(self, seed):
        steps, static, workspace = self.prepared(seed)

        def select():
            return constrained_select(**static, width=777, workspace=workspace)

        select()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = select()
        names = ("columns", "logsumexp", "scores", "nodes")
        inputs = [{name: step[name].cuda() for name in names} for step in steps]
        expected = [on_cuda(constrained_select(**s, width=777, backend="native")) for s in steps]
        for replay in range(1000):
            for name, tensor in inputs[replay % len(steps)].items():
                static[name].copy_(tensor)
            workspace.poison(replay % 256)
            graph.replay()
            assert_same(expected[replay % len(steps)], out)

    def test_two_streams_do_not_meet(self, seed):
        steps, static, workspace = self.prepared(seed)
        other = Workspace(workspace.num_bytes, "cuda")
        second = {k: v if v is None else v.cuda() for k, v in steps[2].items()}
        streams = torch.cuda.Stream(), torch.cuda.Stream()
        found = []
        torch.cuda.synchronize()
        for _ in range(20):
            for stream, memory, step in zip(
                streams, (workspace, other), (static, second), strict=True
            ):
                with torch.cuda.stream(stream):
                    found.append(constrained_select(**step, width=777, workspace=memory))
        torch.cuda.synchronize()
        expected = [
            on_cuda(constrained_select(**steps[i], width=777, backend="native")) for i in (0, 2)
        ]
        for i, selection in enumerate(found):
            assert_same(expected[i % 2], selection)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
def test_one_workspace_serves_widths_that_grow_and_shrink_on_a_gpu():
    step = case(5, 4, 64, 512, 3, coarse=False, most=100_000)
    workspace = Workspace.for_steps(4, [(64, width, 512) for width in AT_THRESHOLDS], "cuda")
    for width in (*AT_THRESHOLDS, *reversed(AT_THRESHOLDS)):
        check_step(step, width, "cuda", workspace=workspace)
