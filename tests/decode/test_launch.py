"""Searches launched one behind another: each result is what a search alone finds."""

import threading

import pytest
import torch
from decode_cases import Search, assert_same_beams, context_of, index_of, model_of, plan_of
from device_cases import place_index, place_requests

from grace.index import MATCHERS
from grace.index.unions import UNIONS
from grace.kernels.tuning import pinned

gpu = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
]
DEVICES = ["cpu", pytest.param("cuda", marks=gpu)]
MODES = [matching for matching in MATCHERS if matching != "off"]
SMALL = {"model_dim": 64, "num_heads": 2, "head_dim": 32, "ffn_dim": 96, "num_context_tokens": 24}
TURNS = ((0, 4), (4, 1), (5, 3), (8, 2), (10, 4), (3, 1), (0, 2), (12, 4))  # first, how many


@pytest.fixture(autouse=True)
def untuned():
    with pinned():
        yield


@pytest.fixture(scope="module")
def small():
    index, requests = index_of(5, num_levels=3, vocab=20, num_ads=1500, rule_rate=0.4)
    return index, requests, model_of(index, **SMALL), plan_of(index.trie, 24)


def launch(search, requests, context, copies=None, trace=True):
    """Start the matcher and launch the search as a server does: behind what is under way."""
    with search.search.on_stream():
        search.on_device.matcher.start(requests)
    return search.search.launch(context, trace=trace, copies=copies)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("matching", MODES)
def test_many_are_launched_before_any_is_read(small, matching, device):
    """Contexts, words and staging of a launched one are not overwritten by the next."""
    index, requests, model, plan = small
    search = Search(index, model, plan, device, matching)
    alone = Search(index, model, plan, device, matching)
    inputs = [
        (requests[first : first + count], context_of(model, count, first).to(device))
        for first, count in TURNS
    ]
    wanted = [alone.run(some, context) for some, context in inputs]
    for _ in range(3):
        launched = [launch(search, some, context.clone()) for some, context in inputs]
        for one, want in reversed(list(zip(launched, wanted, strict=True))):
            found = one.wait()
            assert_same_beams(found, want)
            for mine, theirs in zip(found.entered, want.entered, strict=True):
                assert torch.equal(mine, theirs)


@pytest.mark.parametrize("device", DEVICES)
def test_results_land_in_the_callers_memory(small, device):
    """Which the next search may have once it is read; searches of any size share it."""
    index, requests, model, plan = small
    search = Search(index, model, plan, device)
    mine, other = search.search.new_copies(), search.search.new_copies()
    wanted = {}
    for first, count in TURNS * 2:
        some, context = requests[first : first + count], context_of(model, count, first).to(device)
        if (first, count) not in wanted:
            wanted[first, count] = search.run(some, context)
        here = launch(search, some, context, mine, trace=False)
        launch(search, requests[:4], context_of(model, 4, 99).to(device), other)
        assert here.copies is mine
        found = here.wait()
        launch(search, requests[4:8], context_of(model, 4, 98).to(device), mine).wait()
        assert_same_beams(found, wanted[first, count])
        assert found.entered == []


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("matching", UNIONS)
def test_a_matcher_grows_while_searches_are_under_way(matching, device):
    index = place_index()
    model, plan = model_of(index, **SMALL), plan_of(index.trie, 24)
    search, alone = (Search(index, model, plan, device, matching) for _ in range(2))
    inputs = [
        (place_requests(index, counts), context_of(model, len(counts), turn).to(device))
        for turn, counts in enumerate(((1, 64), (2,), (65, 3, 9), (128,), (1, 300, 2), (1,)))
    ]
    wanted = [alone.run(some, context) for some, context in inputs]
    launched = [launch(search, some, context) for some, context in inputs]
    for one, want in zip(launched, wanted, strict=True):
        assert_same_beams(one.wait(), want)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
@pytest.mark.parametrize("matching", MODES)
def test_one_thread_launches_while_another_reads(small, matching):
    """Hundreds under way, from a stream of the launcher's own; nothing waits for ever."""
    index, requests, model, plan = small
    search = Search(index, model, plan, "cuda", matching, "bfloat16")
    contexts = [context_of(model, count, first) for first, count in TURNS]
    wanted = [
        search.run(requests[first : first + count], context)
        for (first, count), context in zip(TURNS, contexts, strict=True)
    ]
    room, read, failures = threading.Semaphore(3), [], []
    there = threading.Semaphore(0)

    def work():
        try:
            for turn in range(400):
                assert there.acquire(timeout=60)
                found = read[turn].wait()
                room.release()
                assert_same_beams(found, wanted[turn % len(TURNS)])
        except BaseException as failure:
            failures.append(failure)
            room.release()

    reader = threading.Thread(target=work)
    reader.start()
    with torch.cuda.stream(torch.cuda.Stream()):
        for turn in range(400):
            assert room.acquire(timeout=60)
            if failures:
                break
            first, count = TURNS[turn % len(TURNS)]
            context = contexts[turn % len(TURNS)].cuda(non_blocking=True)
            read.append(launch(search, requests[first : first + count], context, trace=False))
            del context  # its memory is another's before the search has read it
            there.release()
    reader.join(60)
    assert not reader.is_alive()
    assert not failures, failures[0]
