"""The trie against the sorted list of SIDs."""

from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from grace import _native
from grace.index.trie import build_trie


@given(st.integers(0, 2**32), st.integers(1, 6), st.sampled_from([1, 2, 7, 600, 2**31 - 2]))
def test_a_trie_holds_exactly_its_sids(seed, levels, vocab):
    rng = np.random.default_rng(seed)
    drawn = rng.integers(0, vocab, (rng.integers(1, 300), levels), endpoint=True)
    sids = np.unique(drawn, axis=0).astype(np.int32)
    trie, _ = build_trie(sids)
    assert (trie.sids == sids).all()
    assert trie.level_sizes == tuple(
        len(np.unique(sids[:, :length], axis=0)) for length in range(levels + 1)
    )
    assert trie.vocab_size == sids.max() + 1
    assert trie.most_children == tuple(
        max(Counter(map(tuple, np.unique(sids[:, : length + 1], axis=0)[:, :-1].tolist())).values())
        for length in range(levels)
    )
    assert (trie.find(sids) == np.arange(len(sids))).all()
    strangers = rng.integers(-1, vocab, (50, levels), endpoint=True)
    known = {tuple(sid): i for i, sid in enumerate(sids.tolist())}
    wanted = [known.get(tuple(sid), -1) for sid in strangers.tolist()]
    assert trie.find(strangers).tolist() == wanted


def test_children_of_a_node_are_neighbours():
    trie, _ = build_trie(np.array([[0, 1], [0, 3], [2, 0]], np.int32))
    assert trie.level_offsets.tolist() == [0, 1, 3, 6]
    assert trie.child_offsets.tolist() == [0, 2, 4, 5]
    assert trie.child_tokens.tolist() == [0, 2, 1, 3, 0]


def test_a_trie_on_a_device_knows_its_sizes():
    trie, _ = build_trie(np.array([[0, 1], [0, 3], [2, 0]], np.int32))
    moved = trie.to("meta")  # has nothing to ask for sizes
    assert moved.child_offsets.device == moved.child_tokens.device == torch.device("meta")
    assert moved.most_children == trie.most_children == (2, 2)
    assert moved.level_sizes == (1, 2, 3)
    assert moved.first_leaf == 3
    assert moved.to("meta").most_children == (2, 2)


def test_a_level_with_one_prefix_does_not_cross_others():
    # (a,b,c) and (x,b,z) must not make (a,b,z): a trie keyed by the previous token only would.
    trie, _ = build_trie(np.array([[1, 2, 3], [7, 2, 9]], np.int32))
    assert trie.find(np.array([[1, 2, 9], [7, 2, 3]])).tolist() == [-1, -1]


@given(st.integers(0, 2**32), st.integers(1, 6), st.sampled_from([1, 2, 700, 2**31 - 2]))
def test_ads_in_any_order_give_the_trie_of_their_sids(seed, levels, vocab):
    rng = np.random.default_rng(seed)
    sids = rng.integers(0, vocab, (rng.integers(1, 300), levels), np.int32, endpoint=True)
    sids = sids[rng.integers(0, len(sids), 2 * len(sids))]  # several ads on one SID
    ids = rng.permutation(len(sids)) - 5
    order = _native.sort_by_integer_id(sids, ids, 1)
    assert order.tolist() == np.lexsort((ids, *sids.T[::-1])).tolist()
    trie, sid_ad_offsets = build_trie(sids, order)
    distinct, counts = np.unique(sids, axis=0, return_counts=True)
    assert (trie.sids == distinct).all()
    assert np.diff(sid_ad_offsets).tolist() == counts.tolist()
    assert (trie.expand(sid_ad_offsets) == sids[order]).all()
    assert sid_ad_offsets.dtype == trie.child_offsets.numpy().dtype == np.int32


def test_the_number_of_workers_does_not_show():
    rng = np.random.default_rng(5)
    sids = rng.integers(0, 40, (400_000, 4), np.int32)
    ids = rng.permutation(len(sids))
    orders = [_native.sort_by_integer_id(sids, ids, workers) for workers in (1, 2, 3)]
    tries = [build_trie(sids, order, 1 + i) for i, order in enumerate(orders)]
    for order, (trie, ads) in zip(orders[1:], tries[1:], strict=True):
        assert (order == orders[0]).all()
        assert (ads == tries[0][1]).all()
        for name in ("level_offsets", "child_offsets", "child_tokens"):
            assert getattr(trie, name).equal(getattr(tries[0][0], name))
    names = ("level_offsets", "child_offsets", "child_tokens")
    arrays = [getattr(tries[0][0], name).numpy() for name in names]
    assert (_native.trie_sids(*arrays, None, 3) == tries[0][0].sids).all()


def test_text_ids_are_ordered_by_their_bytes():
    texts = ["b", "a", "", "\u00e9", "z", "ab", "\U0001f600", "\uffff"]
    encoded = [text.encode() for text in texts]
    offsets = np.cumsum([0, *map(len, encoded)])
    sids = np.zeros((len(texts), 2), np.int32)
    order = _native.sort_by_text_id(sids, np.frombuffer(b"".join(encoded), np.uint8), offsets, 1)
    assert [encoded[i] for i in order] == sorted(encoded)


def test_descending_sids_are_refused():
    with pytest.raises(ValueError, match="ascend"):
        build_trie(np.array([[1, 2], [1, 1]], np.int32))
