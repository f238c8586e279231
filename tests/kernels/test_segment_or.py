"""OR over segments: the reference against numpy, the native version against the reference."""

import numpy as np
import pytest
import torch
from exact_cases import LENGTHS, OFFSETS, check_segment_or, random_words
from hypothesis import given
from hypothesis import strategies as st

from grace.kernels.segment_or import segment_or

int32s = st.integers(-(2**31), 2**31 - 1)
BACKENDS = ("reference", "native")


@given(st.lists(st.lists(int32s, max_size=40), max_size=20))
def test_it_is_the_or_of_each_segment(segments):
    flat = torch.tensor([w for s in segments for w in s], dtype=torch.int32)
    offsets = torch.tensor(np.cumsum([0, *map(len, segments)]))
    wanted = [int(np.bitwise_or.reduce(np.array(s, np.int32), initial=0)) for s in segments]
    for backend in BACKENDS:
        assert segment_or(flat, offsets, backend=backend).tolist() == wanted


@pytest.mark.parametrize("backend", BACKENDS)
def test_around_powers_of_two(backend):
    lengths = [0, 1, 2, 3, 4, 5, 7, 8, 9, 63, 64, 65, 1000, 1024, 1025]
    words = random_words(np.random.default_rng(0), sum(lengths), 0.01)
    offsets = torch.tensor(np.cumsum([0, *lengths]))
    parts = np.split(words.numpy(), offsets[1:-1].numpy())
    wanted = [int(np.bitwise_or.reduce(part, initial=0)) for part in parts]
    assert segment_or(words, offsets, backend=backend).tolist() == wanted


@given(
    seed=st.integers(0, 2**32),
    segments=st.sampled_from([0, 1, 2, 1023, 40_000]),
    lengths=st.sampled_from(LENGTHS[:3]),
    dtype=st.sampled_from(OFFSETS),
)
def test_native_equals_reference(seed, segments, lengths, dtype):
    rng = np.random.default_rng(seed)
    check_segment_or(rng, "native", "cpu", segments, lengths, dtype)


def test_no_number_of_workers_shows():
    rng = np.random.default_rng(0)
    offsets = torch.arange(100_001, dtype=torch.int32)
    words = random_words(rng, 100_000)
    for workers in (1, 2, 7):
        assert torch.equal(segment_or(words, offsets, workers=workers), words)


def test_segments_past_two_billion_words():
    far = 2**31 + 5
    # Pages that nobody touches take no memory.
    words = torch.from_numpy(np.zeros(far + 4, np.int32))
    words[far : far + 3] = torch.tensor([1, -(2**31), 6], dtype=torch.int32)
    offsets = torch.tensor([0, 0, 3, 3, 4]) + far
    assert segment_or(words, offsets).tolist() == [0, 7 - 2**31, 0, 0]
    assert segment_or(words, (offsets - far).int(), shift=far).tolist() == [0, 7 - 2**31, 0, 0]


def test_it_writes_into_a_part_of_the_words():
    words = torch.tensor([9, 9, 1, 2, 4], dtype=torch.int32)
    segment_or(words, torch.tensor([1, 2, 4]), 1, out=words[:2])
    assert words.tolist() == [1, 6, 1, 2, 4]


@pytest.mark.parametrize(
    ("words", "offsets", "options", "message"),
    [
        (torch.zeros(2), torch.tensor([0, 2]), {}, "words must be int32"),
        (torch.zeros(2).int(), torch.tensor([0, 2]).short(), {}, "offsets must be int32 or int64"),
        (torch.zeros(2).int(), torch.tensor([0, 3]), {}, "must lie in 0..2, got 0..3"),
        (torch.zeros(2).int(), torch.tensor([0, 2]), {"shift": 1}, "got 1..3"),
        (torch.zeros(2).int(), torch.tensor([0, 2]), {"backend": "cuda"}, "backend must be"),
        (torch.zeros(2).int(), torch.tensor([0, 2]), {"out": torch.zeros(2).int()}, "out must be"),
    ],
)
def test_what_does_not_fit_is_refused(words, offsets, options, message):
    with pytest.raises(ValueError, match=message):
        segment_or(words, offsets, **options)
