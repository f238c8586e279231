"""Matchers read by captured searches on a CUDA device: every batch gets what the CPU gives it."""

import functools
import gc

import pytest
import torch
from device_cases import (
    SIZES,
    Search,
    assert_found,
    check_batch,
    expected,
    place_index,
    place_requests,
    random_case,
)

from grace.errors import ConfigError
from grace.index import MATCHERS, device_memory
from grace.index.on_device import DeviceIndex
from grace.index.unions import UNIONS

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
]
MODES = [matching for matching in MATCHERS if matching != "off"]
LONG = 400_000_000  # clock cycles: a fifth of a second in which the host runs ahead


unchanged_case = functools.cache(random_case)
"""Of an index that no test changes; to build one takes a second."""


class Captured:
    """A search of up to 32 requests in one graph, captured anew when the matcher says so."""

    def __init__(self, index, matching, seed=0, beams=50):
        self.index, self.matching = index, matching
        self.there = DeviceIndex(index, "cuda", matching)
        self.search = Search(self.there.trie, 32, beams, seed, "cuda")
        self.here = Search(index.trie, 32, beams, seed)
        self.capture()

    def capture(self):
        matcher = self.there.matcher
        self.search.run(matcher.root, matcher.masks)  # compiles
        torch.cuda.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.out = self.search.run(matcher.root, matcher.masks)
        self.generation = matcher.generation

    def answer(self, requests):
        """What the graph finds, in memory of its own; waits for nothing."""
        matcher = self.there.matcher
        matcher.start(requests)
        if matcher.generation != self.generation:
            self.capture()
        torch.cuda.current_stream().wait_event(matcher.ready)
        self.graph.replay()
        return [tensor.clone() for tensor in self.out]

    def wanted(self, requests):
        return expected(self.index, self.matching, requests, self.here)


@pytest.mark.parametrize("matching", MODES)
@pytest.mark.parametrize("seed", range(4))
def test_batches_of_any_size_one_after_the_other(matching, seed):
    index, requests = unchanged_case(seed, num_ads=2000, vocab=40)
    there = DeviceIndex(index, "cuda", matching)
    for number in SIZES:
        check_batch(index, matching, there.matcher, there.trie, requests[:number], seed, beams=50)


@pytest.mark.parametrize("matching", MODES)
@pytest.mark.parametrize("seed", range(4))
def test_a_graph_is_filled_and_replayed(matching, seed):
    index, requests = unchanged_case(seed, num_ads=2000, vocab=40)
    captured = Captured(index, matching, seed)
    for number in SIZES * 3:
        batch = requests[-number:]
        assert_found(captured.answer(batch), captured.wanted(batch))
    assert captured.there.matcher.generation == 0


@pytest.mark.parametrize("matching", MODES)
def test_a_replay_sees_pauses(matching):
    index, requests = random_case(3, num_ads=2000, vocab=40)
    captured = Captured(index, matching)
    ids = [index.ad_id(position) for position in range(index.num_ads)]
    for round_ in range(10):
        index.pause(ids[round_::3])
        assert_found(captured.answer(requests[:16]), captured.wanted(requests[:16]))
        index.resume(ids[round_::2])
        assert_found(captured.answer(requests[:16]), captured.wanted(requests[:16]))
    index.pause(ids)
    nodes, _ = captured.answer(requests)
    assert bool((nodes >= 0).any()) == (matching != "exact")


@pytest.mark.parametrize("matching", MODES)
def test_a_graph_is_captured_anew_where_room_grew(matching):
    index = place_index()
    captured = Captured(index, matching)
    for counts in ((1, 64), (65, 3), (128,), (1, 300, 2), (1,), (400,) * 32, (0, 7)):
        requests = place_requests(index, counts)
        assert_found(captured.answer(requests), captured.wanted(requests))
    assert captured.there.matcher.generation == (2 if matching in UNIONS else 0)


@pytest.mark.parametrize("grows", [False, True])
@pytest.mark.parametrize("matching", MODES)
def test_the_next_batch_waits_for_readers_of_the_last(monkeypatch, matching, grows):
    from grace.index import exact_device

    monkeypatch.setattr(exact_device, "CAPACITY", 4)
    index = place_index()
    captured = Captured(index, matching)
    first = place_requests(index, (1, 2, 3))
    second = place_requests(index, (300,) * 20 if grows else (3, 3))
    captured.answer(second if not grows else first)  # nothing is compiled in between
    torch.cuda.synchronize()
    matcher = captured.there.matcher
    matcher.start(first)
    torch.cuda.current_stream().wait_event(matcher.ready)
    torch.cuda._sleep(LONG)
    captured.graph.replay()
    found = [tensor.clone() for tensor in captured.out]
    matcher.start(second)
    assert_found(found, captured.wanted(first))
    assert_found(captured.answer(second), captured.wanted(second))


@pytest.mark.parametrize("matching", MODES)
def test_starting_waits_for_nothing(matching):
    index, requests = random_case(0, num_ads=2000, vocab=40)
    captured = Captured(index, matching)
    ids = [index.ad_id(position) for position in range(index.num_ads)]
    index.pause(ids[:500])
    captured.answer(requests)  # memory for a batch and for pauses is there from now on
    torch.cuda.synchronize()
    index.resume(ids[:400])
    torch.cuda._sleep(LONG)
    busy = torch.cuda.Event()
    busy.record()
    found = captured.answer(requests[:5])
    assert not busy.query()  # all of that was enqueued while the device slept
    assert_found(found, captured.wanted(requests[:5]))


@pytest.mark.parametrize("matching", MODES)
def test_two_versions_answer_at_once_from_two_streams(matching):
    versions = [unchanged_case(seed, num_ads=1500 + seed, vocab=40) for seed in (0, 1)]
    captured = [Captured(index, matching, seed) for seed, (index, _) in enumerate(versions)]
    streams = [torch.cuda.Stream() for _ in versions]
    torch.cuda.synchronize()
    found = []
    for number in SIZES * 5:
        for one, stream, (_, requests) in zip(captured, streams, versions, strict=True):
            with torch.cuda.stream(stream):
                found.append((one, requests[:number], one.answer(requests[:number])))
    torch.cuda.synchronize()
    for one, requests, answer in found:
        assert_found(answer, one.wanted(requests))


@pytest.mark.parametrize("matching", MATCHERS)
def test_memory_is_counted_before_and_after_and_given_back(matching):
    index, requests = unchanged_case(1, num_ads=3000, vocab=40)
    matcher = DeviceIndex(index, "cuda", matching).matcher  # whatever stays, stays after this
    if matcher is not None:
        matcher.start(requests)
    del matcher
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before, slack = torch.cuda.memory_allocated(), 2**20
    there = DeviceIndex(index, "cuda", matching)
    torch.cuda.synchronize()
    taken = torch.cuda.memory_allocated() - before
    assert there.num_bytes <= taken <= there.num_bytes + slack
    peak = torch.cuda.max_memory_allocated() - before
    assert peak <= device_memory.needed_bytes(index, matching) - device_memory.STAGING + 4 * slack
    if there.matcher is not None:
        there.matcher.start(requests)
    torch.cuda.synchronize()
    del there
    gc.collect()
    assert torch.cuda.memory_allocated() == before


@pytest.mark.parametrize("matching", MATCHERS)
def test_a_full_device_is_refused(monkeypatch, matching):
    index, _ = random_case(1)
    total = torch.cuda.mem_get_info()[1]
    kept = torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
    free = device_memory.STAGING - 1 - kept
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (free, total))
    with pytest.raises(ConfigError, match=r"cuda:0 has 0\.02 GB of free memory"):
        DeviceIndex(index, "cuda", matching)
