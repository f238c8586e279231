"""The filter of a whole batch: threads share its requests, and no answer shows it."""

import numpy as np
import pytest
import torch
from harness import build, examples
from hypothesis import given
from hypothesis import strategies as st
from strategies import cases

import grace


@given(case=cases(max_ads=200, num_requests=9), seed=st.integers(0, 2**32))
@examples(2)
def test_any_number_of_threads_finds_what_each_request_would_alone(case, seed):
    rng = np.random.default_rng(seed)
    index = build(case)
    requests = [index.compile(r["attributes"], r["at"]) for r in case.requests]
    shape = len(requests), 30
    leaves = rng.integers(-1, index.num_sids, shape)
    tokens = np.where(leaves[..., None] >= 0, index.sids[leaves.clip(0)], 0).astype(np.int64)
    nodes = np.where(leaves >= 0, leaves + index.trie.first_leaf, -1)
    scores = np.where(rng.random(shape) < 0.2, -np.inf, rng.normal(size=shape)).astype(np.float32)
    top_k = [None, 0, 3, 100, None, 1, 2, 5, 7]
    before = torch.get_num_threads()
    try:
        for threads in (1, 2, 5, 16):
            torch.set_num_threads(threads)
            found = index.find(tokens, nodes, scores, requests, top_k)
            for b, request in enumerate(requests):
                chosen = np.flatnonzero((scores[b] > -np.inf) & (leaves[b] >= 0))
                want = index.expand(leaves[b, chosen], request)
                kept = slice(None if top_k[b] is None else min(top_k[b], 200))
                assert found[b].positions.tolist() == want.positions[kept].tolist()
                assert found[b].scores.tolist() == scores[b, chosen[want.rows[kept]]].tolist()
                assert found[b].sids.tolist() == tokens[b, chosen[want.rows[kept]]].tolist()
                assert found[b].counts[3:].tolist() == [want.num_expanded, len(want.positions)]
    finally:
        torch.set_num_threads(before)


def test_what_fails_in_a_thread_is_raised():
    index = grace.build_index([{"ad_id": i, "sid": [i % 3]} for i in range(9)], {"attributes": []})
    requests = [index.compile(None)] * 4
    nodes = np.full((4, 1), index.trie.first_leaf, np.int64)
    nodes[2] = index.trie.first_leaf + index.num_sids
    tokens, scores = np.zeros((4, 1, index.num_levels), np.int64), np.zeros((4, 1), np.float32)
    with pytest.raises(IndexError, match="no SID with index"):
        index.find(tokens, nodes, scores, requests, [None] * 4)
