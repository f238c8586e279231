"""The tests of children: native and Triton against the plain torch specification, bit for bit."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from interpreted import run_interpreted
from match_cases import BATCHES, brute_force, case, children_of

from grace.kernels.match_children import match_children
from grace.kernels.match_children.reference import match_reference


@given(
    seed=st.integers(0, 2**32),
    slots=st.integers(0, 2),
    bitmask_words=st.integers(1, 3),
    jagged=st.booleans(),
)
def test_reference_is_the_definition(seed, slots, bitmask_words, jagged):
    step = case(seed, slots=slots, bitmask_words=bitmask_words, jagged=jagged)
    allowed = match_children(**step, backend="reference")
    assert children_of(allowed) == brute_force(**step)


@given(
    seed=st.integers(0, 2**32),
    batch=st.sampled_from(BATCHES),
    beams=st.sampled_from([1, 2, 33]),
    vocab=st.sampled_from([1, 2, 31, 32, 33, 300]),
    levels=st.integers(1, 6),
    bitmask_words=st.integers(1, 4),
    slots=st.integers(0, 3),
    filter_words=st.sampled_from([1, 4, 5]),
    jagged=st.booleans(),
    num_places=st.sampled_from([1, 7, 8, 9, 64]),
    narrow=st.booleans(),
)
def test_native_equals_reference(**drawn):
    step = case(**drawn)
    native = match_children(**step, backend="native")
    assert torch.equal(native, match_children(**step, backend="reference"))


def test_rows_without_bits_pass():
    """An index without attributes keeps rows of no words."""
    step = case(1, bitmask_words=0, slots=0)
    for backend in ("native", "reference"):
        allowed = match_children(**step, backend=backend)
        assert children_of(allowed) == brute_force(**step) != set()


def test_dead_beams_alone_have_no_words():
    step = case(1)
    step["nodes"].fill_(-1)
    for backend in ("native", "reference"):
        assert match_children(**step, backend=backend).shape == (2, 3, 0)


def padded(step, most, extra):
    """The words of nodes that have `most` children at most, with room for `extra` more."""
    words, room = -(-most // 32), -(-(most + extra) // 32)
    allowed = match_children(**step, backend="reference")
    assert allowed.shape[2] == words
    return torch.nn.functional.pad(allowed, (0, room - words))


def most_children(step):
    nodes, offsets = step["nodes"].clamp_min(0), step["child_offsets"]
    counts = torch.where(step["nodes"] < 0, 0, offsets[nodes + 1] - offsets[nodes])
    return int(counts.max())


@pytest.mark.parametrize("backend", ["native", "reference"])
@pytest.mark.parametrize("extra", [0, 1, 31, 32, 100])
def test_max_children_gives_the_number_of_words(backend, extra):
    for seed in range(6):
        step = case(seed, vocab=(1, 33, 300)[seed % 3], jagged=seed % 2 == 1)
        most = most_children(step)
        want = padded(step, most, extra)
        got = match_children(**step, backend=backend, max_children=most + extra)
        assert torch.equal(got, want)
        out = torch.full_like(want, -1)
        returned = match_children(**step, backend=backend, max_children=most + extra, out=out)
        assert returned is out
        assert torch.equal(out, want)


@pytest.mark.parametrize("backend", ["native", "reference"])
def test_a_node_of_more_children_than_announced_is_refused(backend):
    step = case(1)
    most = most_children(step)
    with pytest.raises(ValueError, match=f"max_children must be at least {most}"):
        match_children(**step, backend=backend, max_children=most - 1)


def test_a_compiled_graph_holds_it_whole():
    for jagged in (False, True):
        step = case(1, jagged=jagged)
        compiled = torch.compile(match_children, fullgraph=True, backend="eager")
        want = padded(step, most_children(step), 40)
        announced = most_children(step) + 40
        assert torch.equal(compiled(**step, max_children=announced), want)
        out = torch.full_like(want, -1)
        compiled(**step, max_children=announced, out=out)
        assert torch.equal(out, want)
        # As many words as the nodes at hand need: an operator whose output has no known size.
        assert torch.equal(compiled(**step), match_children(**step))


@pytest.mark.parametrize("max_children", [None, 64])
@pytest.mark.parametrize("jagged", [False, True])
def test_the_operator_does_what_it_declares(max_children, jagged):
    step = case(1, jagged=jagged)
    arguments = (
        step["nodes"], step["child_offsets"], *vars(step["rows"]).values(),
        *vars(step["masks"]).values(), max_children, "reference",
    )  # fmt: skip
    checks = ("test_schema", "test_faketensor", "test_aot_dispatch_dynamic")
    torch.library.opcheck(torch.ops.grace.match_children.default, arguments, test_utils=checks)


def test_triton_equals_reference_when_interpreted():
    run_interpreted("from test_match_children import check_triton; check_triton()")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"nodes": torch.zeros(2, 3)}, r"nodes must be int64 \[2, 3\]"),
        ({"nodes": torch.zeros(2, dtype=torch.int64)}, "nodes must be int64"),
        ({"nodes": torch.zeros(3, 3, dtype=torch.int64)}, r"want must be int64 \[3, 2\]"),
        ({"child_offsets": torch.zeros(9)}, "child_offsets must be int32 or int64"),
        ({"masks": case(0, slots=2)["masks"]}, "places must be int64"),
        ({"backend": "cuda"}, "backend must be"),
        ({"out": torch.zeros(2, 3, 2, dtype=torch.int32)}, "out needs max_children"),
        (
            {"out": torch.zeros(2, 3, 1, dtype=torch.int32), "max_children": 40},
            r"out must be contiguous int32 \[2, 3, 2\] on cpu, got int32 \[2, 3, 1\]",
        ),
        (
            {"out": torch.zeros(2, 3, 4, dtype=torch.int32)[..., ::2], "max_children": 40},
            "out must be contiguous",
        ),
    ],
)
def test_what_does_not_fit_is_refused(change, message):
    with pytest.raises(ValueError, match=message):
        match_children(**case(0) | change)


def test_a_leaf_has_no_children():
    step = case(0)
    step["nodes"][0, 0] = len(step["child_offsets"])
    with pytest.raises(IndexError):
        match_children(**step)


def interpreted_cases():
    for seed in range(12):
        yield case(
            seed,
            batch=1 + seed % 3,
            vocab=(1, 33, 200)[seed % 3],
            levels=1 + seed % 4,
            bitmask_words=1 + seed % 3,
            slots=seed % 3,
            filter_words=(1, 4, 5)[seed % 3],
            jagged=seed % 2 == 1,
            num_places=(1, 9)[seed % 2],
            narrow=seed % 4 == 0,
            max_sids=60,
        )
    yield case(1, bitmask_words=0, slots=0)


def check_triton():
    for number, step in enumerate(interpreted_cases()):
        want = match_children(**step, backend="reference")
        assert torch.equal(match_children(**step, backend="triton"), want), number
        announced = most_children(step) + 33
        want = match_reference(*step.values(), num_words=-(-announced // 32))
        out = torch.full_like(want, -1)  # every word is written, a dead beam's too
        match_children(**step, backend="triton", max_children=announced, out=out)
        assert torch.equal(out, want), number
