"""Children decided on demand equal those read off the words of all nodes."""

import numpy as np
import pytest
import torch
from exact_cases import random_offsets
from hypothesis import given
from hypothesis import strategies as st

from grace.index.trie import build_trie
from grace.kernels.leaf_words import leaf_words
from grace.kernels.rule_words import interval_words, value_words
from grace.kernels.segment_or import segment_or
from grace.kernels.signature_words import signature_words
from grace.kernels.visited_children import Visits
from grace.kernels.visited_children.reference import visited_children_reference
from grace.kernels.words import everyone

NUM_RULES, NUM_VALUES, NUM_SIGNATURES, VOCAB = 20, 30, 50, 40


class Example:
    """A random catalogue of one range and one value attribute, and a batch of requests."""

    def __init__(self, seed, requests, levels, wide):
        rng = self.rng = np.random.default_rng(seed)
        sids = np.unique(rng.integers(0, VOCAB, (int(rng.integers(1, 800)), levels)), axis=0)
        self.trie, _ = build_trie(sids.astype(np.int32))
        offset_dtype = torch.int64 if wide else torch.int32
        self.child_offsets = self.trie.child_offsets.to(offset_dtype)
        self.sid_ad_offsets = random_offsets(rng, len(sids), (1, 1, 2, 9), offset_dtype)
        num_ads = int(self.sid_ad_offsets[-1])
        self.ad_signatures = self.ints(NUM_SIGNATURES, num_ads)
        self.ad_state = torch.from_numpy(rng.choice(np.array([0, 0, 1, 2], np.uint8), num_ads))
        self.signatures = self.ints(NUM_RULES, NUM_SIGNATURES, 3)
        self.windows = torch.from_numpy(rng.integers(0, 9, (NUM_RULES, 2)))
        self.ranges = tuple(
            torch.from_numpy(rng.integers(0, 9, NUM_RULES)).double() for _ in range(2)
        )
        include, exclude = (random_offsets(rng, NUM_RULES, (0, 1, 4), offset_dtype) for _ in "ie")
        self.values = (
            include, self.ints(NUM_VALUES, int(include[-1])),
            exclude, self.ints(NUM_VALUES, int(exclude[-1])),
        )  # fmt: skip
        self.everyone = everyone(requests)
        self.numbers = rng.integers(0, 9, (2, requests)).astype(np.float64)
        self.numbers[0, ::4] = np.nan
        self.at = rng.integers(0, 9, requests)
        bits = rng.random((NUM_VALUES, 32)) < 0.1
        carried = np.packbits(bits, axis=1, bitorder="little").view("<i4").reshape(-1)
        self.carried = carried & np.int32(self.everyone)
        self.known = np.array([0, np.bitwise_or.reduce(self.carried)], np.int32)

    def ints(self, below, *shape):
        return torch.from_numpy(self.rng.integers(0, below, shape).astype(np.int32))

    def words(self):
        """int32 [S], by the references."""
        reference = {"backend": "reference"}
        at, carried = torch.from_numpy(self.at), torch.from_numpy(self.carried)
        tables = [
            interval_words(
                *self.ranges, torch.from_numpy(self.numbers[0]), True, self.everyone, **reference
            ),
            value_words(*self.values, carried, int(self.known[1]), self.everyone, **reference),
            interval_words(*self.windows.unbind(1), at, False, self.everyone, **reference),
        ]
        words = signature_words(self.signatures.unbind(1), tables, **reference)
        ads = (self.ad_signatures, self.ad_state, self.sid_ad_offsets)
        nodes = torch.empty(self.trie.num_nodes, dtype=torch.int32)
        bounds = self.trie.level_offsets.tolist()
        nodes[bounds[-2] :] = leaf_words(words, *ads, **reference)
        for level in range(self.trie.num_levels - 1, -1, -1):
            first, last = bounds[level], bounds[level + 1]
            offsets = self.child_offsets[first : last + 1]
            nodes[first:last] = segment_or(nodes, offsets, 1, **reference)
        return nodes

    def begin(self, memo, stamp, budget=2**62):
        visits = Visits(
            self.trie.level_offsets, self.child_offsets, self.sid_ad_offsets, self.ad_signatures,
            self.ad_state, self.signatures, self.windows, (self.ranges, self.values),
        )  # fmt: skip
        carried = (np.empty(0, np.int32), self.carried)
        return visits.begin(
            self.everyone, self.known, self.numbers, self.at, carried, memo, stamp, budget
        )

    def nodes(self, level, requests, beams):
        first, last = self.trie.level_offsets[level : level + 2].tolist()
        nodes = self.rng.integers(first, last, (requests, beams))
        nodes[self.rng.random(nodes.shape) < 0.2] = -1
        return torch.from_numpy(nodes)


@given(
    seed=st.integers(0, 2**32),
    requests=st.sampled_from([1, 2, 16, 31, 32]),
    levels=st.integers(1, 4),
    wide=st.booleans(),
    workers=st.sampled_from([1, 3]),
)
def test_native_equals_reference(seed, requests, levels, wide, workers):
    example = Example(seed, requests, levels, wide)
    words = example.words()
    memo = np.zeros(NUM_SIGNATURES, np.int64)
    for stamp in (1, 2**32 - 1):
        batch = example.begin(memo, stamp)
        for level in range(levels):
            nodes = example.nodes(level, requests, 70)
            got = batch.children(nodes, workers=workers)
            want = visited_children_reference(nodes, example.child_offsets, words)
            assert torch.equal(got, want)
        accepted, live = batch.count(np.arange(len(example.ad_state)))
        assert live == int((example.ad_state == 0).sum())
        assert (accepted[:requests] > 0).tolist() == [
            bool(words[0].item() >> b & 1) for b in range(requests)
        ]


def test_a_budget_ends_the_scan():
    example = Example(3, 1, 3, False)
    memo, root = np.zeros(NUM_SIGNATURES, np.int64), torch.zeros(1, 1, dtype=torch.int64)
    example.ad_state[:] = 1
    ads = len(example.ad_state)
    assert example.begin(memo, 1, ads - 1).children(root) is None
    enough = example.begin(memo, 2, 2 * ads)
    none = [[[0] * (-(-example.trie.level_sizes[1] // 32))]]
    assert enough.children(root).tolist() == none
    assert enough.children(root).tolist() == none
    assert enough.children(root) is None


def test_no_live_beam_has_no_children():
    example = Example(0, 2, 3, False)
    batch = example.begin(np.zeros(NUM_SIGNATURES, np.int64), 1)
    assert batch.children(torch.full((2, 5), -1)).shape == (2, 5, 0)


def test_a_leaf_has_no_children():
    example = Example(0, 2, 3, False)
    batch = example.begin(np.zeros(NUM_SIGNATURES, np.int64), 1)
    leaf = example.trie.first_leaf
    with pytest.raises(IndexError, match=f"node {leaf} has no children"):
        batch.children(torch.tensor([[leaf]]))
