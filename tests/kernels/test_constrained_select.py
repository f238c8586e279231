"""The native constrained selection against its plain torch specification, bit for bit."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from select_cases import assert_same, case

from grace.index.trie import build_trie
from grace.kernels.constrained_select import constrained_select

WIDTHS = [1, 2, 31, 33, 129, 513, 1024]


@given(
    seed=st.integers(0, 2**32),
    batch=st.sampled_from([1, 2, 16, 32]),
    beams=st.sampled_from([1, 2, 33, 129]),
    vocab=st.sampled_from([2, 5, 64, 513]),
    levels=st.integers(1, 4),
    coarse=st.booleans(),
    width=st.sampled_from(WIDTHS),
)
def test_native_equals_reference(seed, batch, beams, vocab, levels, coarse, width):
    step = case(seed, batch, beams, vocab, levels, coarse)
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
        ({"columns": torch.zeros(1, 2)}, "columns must be float32"),
        ({"columns": torch.zeros(1, 1, 2, dtype=torch.float64)}, "columns must be float32"),
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
