"""The tests of children: native and Triton against the plain torch specification, bit for bit."""

import os
import subprocess
import sys
from pathlib import Path

import match_cases
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from match_cases import BATCHES, brute_force, case, children_of

from grace.kernels.match_children import match_children

ROOT = Path(__file__).parents[2]


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


def test_triton_equals_reference_when_interpreted():
    pytest.importorskip("triton", reason="the kernel is written in Triton")
    environment = os.environ | {
        "TRITON_INTERPRET": "1",
        "PYTHONPATH": f"{ROOT}{os.pathsep}{Path(match_cases.__file__).parent}",
    }
    subprocess.run([sys.executable, __file__], check=True, env=environment, cwd=ROOT, timeout=600)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"nodes": torch.zeros(2, 3)}, r"nodes must be int64 \[2, 3\]"),
        ({"nodes": torch.zeros(2, dtype=torch.int64)}, "nodes must be int64"),
        ({"nodes": torch.zeros(3, 3, dtype=torch.int64)}, r"want must be int64 \[3, 2\]"),
        ({"child_offsets": torch.zeros(9)}, "child_offsets must be int32 or int64"),
        ({"masks": case(0, slots=2)["masks"]}, "places must be int64"),
        ({"backend": "cuda"}, "backend must be"),
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


if __name__ == "__main__":  # in a process of its own: Triton reads TRITON_INTERPRET once
    for number, step in enumerate(interpreted_cases()):
        interpreted = match_children(**step, backend="triton")
        assert torch.equal(interpreted, match_children(**step, backend="reference")), number
