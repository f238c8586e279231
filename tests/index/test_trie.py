"""The trie against the sorted list of SIDs."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from grace.index.trie import build_trie


@given(st.integers(0, 2**32), st.integers(1, 6), st.sampled_from([1, 2, 7, 600, 2**31 - 2]))
def test_a_trie_holds_exactly_its_sids(seed, levels, vocab):
    rng = np.random.default_rng(seed)
    drawn = rng.integers(0, vocab, (rng.integers(1, 300), levels), endpoint=True)
    sids = np.unique(drawn, axis=0).astype(np.int32)
    trie = build_trie(sids)
    assert (trie.sids == sids).all()
    assert trie.level_sizes == tuple(
        len(np.unique(sids[:, :length], axis=0)) for length in range(levels + 1)
    )
    assert trie.vocab_size == sids.max() + 1
    assert (trie.find(sids) == np.arange(len(sids))).all()
    strangers = rng.integers(-1, vocab, (50, levels), endpoint=True)
    known = {tuple(sid): i for i, sid in enumerate(sids.tolist())}
    wanted = [known.get(tuple(sid), -1) for sid in strangers.tolist()]
    assert trie.find(strangers).tolist() == wanted


def test_children_of_a_node_are_neighbours():
    trie = build_trie(np.array([[0, 1], [0, 3], [2, 0]], np.int32))
    assert trie.level_offsets.tolist() == [0, 1, 3, 6]
    assert trie.child_offsets.tolist() == [0, 2, 4, 5]
    assert trie.child_tokens.tolist() == [0, 2, 1, 3, 0]


def test_a_level_with_one_prefix_does_not_cross_others():
    # (a,b,c) and (x,b,z) must not make (a,b,z): a trie keyed by the previous token only would.
    trie = build_trie(np.array([[1, 2, 3], [7, 2, 9]], np.int32))
    assert trie.find(np.array([[1, 2, 9], [7, 2, 3]])).tolist() == [-1, -1]
