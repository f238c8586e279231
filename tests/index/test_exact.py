"""The exact matcher against brute force, in both forms, and under changing ads."""

import threading
import time

import numpy as np
import oracle
import pytest
import torch
from harness import build, build_rows
from strategies import Case

from grace.index.batch import Batch
from grace.index.buffers import Buffers, Memos
from grace.index.exact import ExactMatcher
from grace.index.exact_cost import Sizes, visited_children
from grace.kernels.visited_children.reference import visited_children_reference

BATCHES = (1, 2, 15, 16, 17, 31, 32)


def matcher_of(index, state=None, workers=1):
    data = index.data
    state = torch.zeros(index.num_ads, dtype=torch.uint8) if state is None else state
    return ExactMatcher(
        data.tables, data.trie, data.sid_ad_offsets, data.ad_signatures, state, workers
    )


def compiled(index, requests):
    return [index.compile(request["attributes"], request["at"]) for request in requests]


def prefixes_in_node_order(ads):
    return sorted(oracle.valid_prefixes(ads), key=lambda prefix: (len(prefix), prefix))


def check_lazy(matcher, verdict, requests):
    """Every child of every inner node, on demand, is what its word says."""
    batch = Batch.of(requests, len(matcher.tables.rules))
    trie, lazy = matcher.trie, matcher.visits(batch)
    for level in range(trie.num_levels):
        first, last = trie.level_offsets[level : level + 2].tolist()
        nodes = torch.arange(first, last).repeat(len(requests), 1)
        want = visited_children_reference(nodes, trie.child_offsets, verdict.words)
        assert torch.equal(lazy.children(nodes), want)


def test_a_hundred_thousand_random_cases():
    done = 0
    for seed in range(330):
        case = Case(
            seed=seed,
            num_ads=1 + seed % 13,
            num_levels=1 + seed % 4,
            vocab=4,
            shape=("uniform", "few", "dense")[seed % 3],
            rule_rate=(0.2, 0.5, 0.9)[seed // 3 % 3],
            num_places=(4, 60)[seed % 2],
            num_requests=312,
            attributes=1 + seed % 5,
        )
        index = build(case)
        matcher = matcher_of(index, index.data.ad_paused)
        nodes, requests = prefixes_in_node_order(case.ads), compiled(index, case.requests)
        eligible = [
            oracle.eligible_prefixes(case.ads, request, case.schema) for request in case.requests
        ]
        first = 0
        while first < len(requests):
            size = BATCHES[done % len(BATCHES)]
            batch = requests[first : first + size]
            verdict = matcher.start(batch)
            bits = verdict.words[:, None] >> torch.arange(len(batch)) & 1
            want = [
                [prefix in found for found in eligible[first : first + size]] for prefix in nodes
            ]
            assert torch.equal(bits.bool(), torch.tensor(want)), (seed, first)
            assert torch.equal(verdict.root, bits[0].bool())
            if first == 0:
                check_lazy(matcher, verdict, batch)
            first += size
            done += len(batch)
    assert done >= 100_000


def test_thirty_three_requests_are_refused():
    case = Case(num_requests=33)
    index = build(case)
    with pytest.raises(ValueError, match="a word holds 32 requests, got 33"):
        matcher_of(index).start(compiled(index, case.requests))


SCHEMA = [{"name": "age", "kind": "range"}, {"name": "place", "kind": "set"}]


def rows(rules, width=8):
    return [
        {"ad_id": i, "sid": [i // width**2 % width, i // width % width, i % width], "rules": rule}
        for i, rule in enumerate(rules)
    ]


def test_zero_one_and_all_eligible_in_one_batch():
    rules = [{"age": {"min": 18}}] * 400
    rules[217] = {"place": {"include": ["US"]}}
    index = build_rows(rows(rules), SCHEMA)
    requests = [
        index.compile(attributes, "2026-01-01T00:00:00Z")
        for attributes in ({}, {"age": 20}, {"place": ["US"]}, {"age": 18, "place": ["US"]})
    ]
    state = torch.zeros(400, dtype=torch.uint8)
    matcher = matcher_of(index, state)
    verdict = matcher.start(requests)
    leaves = verdict.words[index.trie.first_leaf :]
    counts = [int((leaves >> b & 1).sum()) for b in range(4)]
    assert counts == [0, 399, 1, 400]
    assert verdict.root.tolist() == [False, True, True, True]
    check_lazy(matcher, verdict, requests)
    state[:] = 2
    verdict = matcher.start(requests)
    assert not verdict.words.any()
    assert not verdict.root.any()
    check_lazy(matcher, verdict, requests)


def test_a_hundred_thousand_places_in_one_rule():
    places = [f"place {i}" for i in range(100_000)]
    index = build_rows(
        rows([{"place": {"include": places}}, {"place": {"exclude": places}}]), SCHEMA
    )
    requests = [
        index.compile({"place": value}, "2026-01-01T00:00:00Z")
        for value in (["place 99999"], ["place x"], ["place 0", "place x"], places)
    ]
    verdict = matcher_of(index).start(requests)
    assert verdict.words[-2:].tolist() == [0b1101, 0b0010]


def test_windows_open_at_their_start_and_close_at_their_end():
    start, end = "2026-03-01T12:00:00.000001Z", "2026-03-01T12:00:00.000003Z"
    ads = [{"ad_id": 1, "sid": [1], "start": start, "end": end}]
    index = build_rows(ads, SCHEMA)
    requests = [index.compile({}, f"2026-03-01T12:00:00.{i:06}Z") for i in range(5)]
    assert matcher_of(index).start(requests).words.tolist() == [0b00110] * 2


def test_the_cheaper_form_is_chosen_and_named():
    case = Case(num_ads=4000, vocab=16, num_levels=3, rule_rate=0.05, num_requests=2, seed=5)
    index = build(case)
    state = torch.zeros(index.num_ads, dtype=torch.uint8)
    matcher, requests = matcher_of(index, state), compiled(index, case.requests)
    assert matcher.start(requests).how == "exact, every node"
    matcher._sizes = Sizes(10**8, 10**8, index.num_ads, index.level_sizes)  # as if it were large
    few, all_of_them = (8, 8, 8), index.level_sizes[1:]
    verdict = matcher.start(requests, few)
    assert (verdict.how, verdict.words) == ("exact, visited nodes", None)
    words = matcher.start(requests).words
    nodes = torch.tensor([[0, -1], [0, 0]])
    want = visited_children_reference(nodes, index.trie.child_offsets, words)
    assert torch.equal(verdict.children(nodes), want)
    assert verdict.root.tolist() == [True, True]
    state[:] = 1  # no request is seen to have an ad
    assert matcher.start(requests, few).how == "exact, every node"
    state[:] = 0
    small = matcher_of(index)
    assert small.start(requests, all_of_them).how == "exact, every node"


def test_a_misleading_sample_costs_no_more_than_every_node():
    case = Case(num_ads=500, vocab=16, num_levels=3, rule_rate=0.05, num_requests=2, seed=5)
    index = build(case)
    state = torch.zeros(index.num_ads, dtype=torch.uint8)
    matcher, requests = matcher_of(index, state), compiled(index, case.requests)
    batch = Batch.of(requests, len(matcher.tables.rules))
    words = matcher.start(requests).words
    verdict = matcher._visited_nodes(batch, matcher.visits(batch, budget=100))
    for level in range(3):
        first, last = index.trie.level_offsets[level : level + 2].tolist()
        nodes = torch.arange(first, last).repeat(2, 1)
        want = visited_children_reference(nodes, index.trie.child_offsets, words)
        assert torch.equal(verdict.children(nodes), want)


def test_visited_children_are_no_more_than_there_are():
    assert visited_children((1, 10, 100, 150), (1, 4, 1000), 2) == (10, 80, 150)
    assert visited_children((1, 512, 200_000, 10**6), (1, 8, 8), 1) == (512, 3125, 40)


def test_no_number_of_workers_shows():
    case = Case(num_ads=3000, vocab=64, num_requests=32, seed=2)
    index = build(case)
    requests = compiled(index, case.requests)
    words = [matcher_of(index, workers=workers).start(requests).words for workers in (1, 2, 5)]
    assert torch.equal(words[0], words[1])
    assert torch.equal(words[0], words[2])


def test_a_batch_sees_every_pause_made_before_it_began():
    """A thread pauses ads in order and says how far it is; no batch may see those."""
    ads = rows([None] * 4096, width=16)
    index = build_rows(ads, SCHEMA)
    state = torch.zeros(len(ads), dtype=torch.uint8)
    matcher = matcher_of(index, state, workers=2)
    request = [index.compile({}, "2026-01-01T00:00:00Z")]
    paused_up_to, stop = [0], threading.Event()
    view, half = state.numpy(), len(ads) // 2

    def pause_some_for_good_and_others_for_a_while():
        for ad in range(half):
            view[ad] = 1
            paused_up_to[0] = ad + 1
            view[half + ad] = 1 - view[half + ad]
            view[half:] = ad % 2
            if ad % 32 == 0:
                time.sleep(0.001)
            if stop.is_set():
                return

    thread = threading.Thread(target=pause_some_for_good_and_others_for_a_while)
    thread.start()
    seen = set()
    try:
        while thread.is_alive():
            before = paused_up_to[0]
            words = matcher.start(request).words[index.trie.first_leaf :]
            assert not words[:before].any()
            seen.add(before)
    finally:
        stop.set()
        thread.join()
    assert seen
    assert not matcher.start(request).words[index.trie.first_leaf :][:half].any()


def test_buffers_are_lent_again_only_when_no_view_is_left():
    buffers = Buffers(8)
    tensor = buffers.lend()
    address, view = tensor.data_ptr(), tensor[2:4]
    del tensor
    other = buffers.lend()
    assert other.data_ptr() != address
    del view
    assert buffers.lend().data_ptr() == address


def test_memos_never_repeat_a_stamp():
    memos = Memos(4)
    array, stamp = memos.lend()
    assert stamp == 1
    assert not array.any()
    other, _ = memos.lend()
    assert not np.shares_memory(array, other)
    del array
    assert memos.lend()[1] == 2
