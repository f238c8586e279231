"""Matchers with fixed memory on a device give what `Index.match` gives, batch after batch."""

import pytest
import torch
from device_cases import (
    SIZES,
    check_batch,
    place_index,
    place_requests,
    random_case,
)
from hypothesis import given
from hypothesis import strategies as st
from interpreted import run_interpreted

from grace.errors import ConfigError
from grace.index import MATCHERS, device_memory
from grace.index.on_device import DeviceIndex
from grace.index.unions import UNIONS

MODES = [matching for matching in MATCHERS if matching != "off"]


@pytest.mark.parametrize("matching", MODES)
@given(seed=st.integers(0, 2**32), levels=st.integers(1, 5))
def test_batches_of_any_size_one_after_the_other(matching, seed, levels):
    index, requests = random_case(seed, num_levels=levels)
    there = DeviceIndex(index, "cpu", matching)
    kept = there.matcher.root.data_ptr()
    for number in SIZES:
        check_batch(index, matching, there.matcher, there.trie, requests[:number], seed)
    assert there.matcher.generation == 0
    assert there.matcher.root.data_ptr() == kept


def test_off_asks_nobody():
    index, _ = random_case(0)
    there = DeviceIndex(index, "cpu", "off")
    assert there.matcher is None
    assert there.num_bytes == device_memory.held_bytes(torch.device("cpu"), index.trie)


@pytest.mark.parametrize("matching", MODES)
def test_pauses_show_in_the_next_batch(matching):
    index, requests = random_case(3, num_ads=200)
    there = DeviceIndex(index, "cpu", matching)
    ids = [index.ad_id(position) for position in range(index.num_ads)]
    for change, some in (
        (index.pause, ids[::2]), (index.bid_off, ids[:50]), (index.resume, ids[::3]),
        (index.pause, ids), (index.resume, ids[:1]),
    ):  # fmt: skip
        change(some)
        check_batch(index, matching, there.matcher, there.trie, requests[:9])
    index.pause(ids)
    verdict = there.matcher.start(requests)
    assert bool(verdict.root.any()) == (matching != "exact")


@pytest.mark.parametrize("matching", MODES)
def test_requests_that_may_see_nothing_are_dead_from_the_start(matching):
    index = place_index()
    # Places that no rule names; and nothing is known of the others' age.
    asked = [{"place": ["nowhere"]}, {"place": ["p3"]}, {"age": 40}, {"age": 2, "place": ["no"]}]
    requests = [index.compile(attributes, "2026-03-01T12:00:00Z") for attributes in asked]
    there = DeviceIndex(index, "cpu", matching)
    verdict = there.matcher.start(requests)
    wanted = [True] * 4 if matching == "valid" else index.match(matching, requests).root.tolist()
    assert verdict.root.tolist() == wanted
    if matching == "exact":
        assert not verdict.root[0]
        assert not verdict.root[3]
    check_batch(index, matching, there.matcher, there.trie, requests)


@pytest.mark.parametrize("matching", UNIONS)
def test_room_for_places_grows_and_says_so(matching):
    index = place_index()
    there = DeviceIndex(index, "cpu", matching)
    grown = []
    for counts in ((1, 64), (2,), (65, 3), (128,), (1, 300, 2), (1,), (400,) * 32):
        requests = place_requests(index, counts)
        check_batch(index, matching, there.matcher, there.trie, requests)
        grown.append(there.matcher.generation)
    assert grown == [0, 0, 1, 1, 2, 2, 2]


@pytest.mark.parametrize("matching", MODES)
def test_too_many_requests_are_refused(matching):
    index, requests = random_case(0, num_requests=33)
    matcher = DeviceIndex(index, "cpu", matching).matcher
    with pytest.raises(ValueError, match="holds 32 requests, got 33"):
        matcher.start(requests)
    check_batch(index, matching, matcher, index.trie, requests[:32])


@pytest.mark.parametrize("matching", MODES)
def test_two_versions_stand_beside_each_other(matching):
    versions = [random_case(seed, num_ads=30 + seed) for seed in (4, 5)]
    there = [DeviceIndex(index, "cpu", matching) for index, _ in versions]
    for number in (2, 5):
        started = [
            on_device.matcher.start(requests[:number])
            for on_device, (_, requests) in zip(there, versions, strict=True)
        ]
        for verdict, (index, requests) in zip(started, versions, strict=True):
            want = index.match(matching, requests[:number])
            if want is not None:
                assert torch.equal(verdict.root, want.root)
                assert want.words is None or torch.equal(verdict.words, want.words)


def test_a_mode_that_is_none_is_refused():
    with pytest.raises(ValueError, match="matching must be one of off, valid"):
        DeviceIndex(random_case(0)[0], "cpu", "bloom")


@pytest.mark.parametrize("matching", MATCHERS)
def test_too_little_memory_is_refused(monkeypatch, matching):
    index, _ = random_case(0)
    needed, device = device_memory.needed_bytes(index, matching), torch.device("cuda:0")
    monkeypatch.setattr(device_memory, "free_bytes", lambda device: needed)
    device_memory.check_room(index, matching, device)
    monkeypatch.setattr(device_memory, "free_bytes", lambda device: needed - 1)
    with pytest.raises(ConfigError) as refused:
        device_memory.check_room(index, matching, device)
    for word in ("cuda:0 has 0.02 GB", "takes 0.02 GB", f"'{matching}'", "device 'cpu'"):
        assert word in str(refused.value)


@pytest.mark.parametrize("matching", UNIONS)
def test_needed_memory_is_no_less_than_held(matching):
    index, _ = random_case(1, num_ads=3000, vocab=30)
    there = DeviceIndex(index, "cpu", matching)
    needed = device_memory.needed_bytes(index, matching)
    on_host = index.trie.level_offsets.nbytes  # and the dictionaries, which are small here
    assert there.num_bytes - on_host < needed
    assert there.num_bytes > device_memory.held_bytes(torch.device("cpu"), index.trie)


@pytest.mark.parametrize("check", ["check_unions_interpreted", "check_exact_interpreted"])
def test_in_triton_when_interpreted(check):
    run_interpreted(f"import device_cases; device_cases.{check}()")
