"""A catalogue on a device, and the matchers and requests that go with it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.exact_arrays import Maker
from grace.index import Index
from grace.index.bloom import BloomShape
from grace.index.device_matchers import DeviceMatcher, ExactOnHost, UnionsOnDevice
from grace.index.exact import ExactMatcher
from grace.index.rules import CompiledTargeting, RuleTables
from grace.index.trie import Trie
from grace.index.unions import UNIONS, UnionMatcher, build_unions
from grace.index.verdict import Verdict


class BitmaskOnDevice(UnionsOnDevice):
    """GRACE's unions without their Bloom filters: any place passes."""

    def start(self, requests: Sequence[CompiledTargeting]) -> Verdict:
        """Stage what the requests ask for, the places left out."""
        verdict = super().start(requests)
        self._staging.device["num_places"].fill_(-1)
        return verdict


@dataclass(frozen=True)
class World:
    """One catalogue; its matchers are made when they are asked for, once.

    Attributes:
        tables, trie, sid_ad_offsets, ad_signatures, ad_state: as for `ExactMatcher`, on the CPU.
        requests: enough for a batch.
        counts: sizes, for the record.
        device: where matchers answer.
        workers: threads that build unions.
    """

    tables: RuleTables
    trie: Trie
    sid_ad_offsets: Tensor
    ad_signatures: Tensor
    ad_state: Tensor
    requests: list[CompiledTargeting]
    counts: dict[str, int]
    device: str
    workers: int

    @cached_property
    def trie_there(self) -> Trie:
        """The trie on the device."""
        return self.trie.to(self.device)

    def matcher(self, matching: str | None) -> DeviceMatcher | None:
        """The matcher of `exact`, `bitmask+bloom` or `bitmask`; None for the trie alone."""
        if matching is None:
            return None
        if matching == "exact":
            return self._exact
        return self._bitmask if matching == "bitmask" else self._unions

    @cached_property
    def _exact(self) -> DeviceMatcher:
        made_of = (
            self.tables, self.trie, self.sid_ad_offsets, self.ad_signatures, self.ad_state,
        )  # fmt: skip
        if self.device == "cpu":
            return ExactOnHost(ExactMatcher(*made_of))
        from grace.index.exact_device import ExactOnDevice

        return ExactOnDevice(*made_of, self.device, child_offsets=self.trie_there.child_offsets)

    @cached_property
    def _rows(self) -> UnionMatcher:
        name = "bitmask+bloom"
        return build_unions(
            name, self.tables, self.trie, self.sid_ad_offsets, self.ad_signatures, BloomShape(),
            UNIONS[name], self.workers,
        ).to(self.device)  # fmt: skip

    @cached_property
    def _unions(self) -> UnionsOnDevice:
        return UnionsOnDevice(self._rows, self.trie_there.child_offsets)

    @cached_property
    def _bitmask(self) -> BitmaskOnDevice:
        return BitmaskOnDevice(self._rows, self.trie_there.child_offsets)


def match_again(matcher: DeviceMatcher) -> None:
    """Enqueue all device work of an exact matcher's last `start` once more; searches wait for it."""
    with matcher._side_stream():
        matcher._graph.replay()
        matcher.ready.record(matcher._stream)


def drawn_world(scale: float, batch: int, seed: int, device: str, workers: int) -> World:
    """Draw the arrays of `benchmarks.exact_arrays`: at scale 1 the paper's sizes."""
    arrays = Maker(scale, batch, seed, device).arrays()
    return World(
        *arrays.matcher_arguments, arrays.requests, arrays.counts, device, workers
    )  # fmt: skip


def opened_world(index_folder: Path, catalog: Path, batch: int, device: str, workers: int) -> World:
    """Open an index and take the first requests of the catalogue that it was built from."""
    index = Index.open(index_folder)
    with (catalog / "requests.jsonl").open() as file:
        requests = [json.loads(line) for line, _ in zip(file, range(batch), strict=False)]
    data = index.data
    counts = {"ads": index.num_ads, "sids": index.num_sids, "requests": len(requests)}
    return World(
        data.tables, data.trie, data.sid_ad_offsets, data.ad_signatures, index.ad_state,
        [index.compile(r["attributes"], r["at"]) for r in requests], counts, device, workers,
    )  # fmt: skip


def assert_eligible(nodes: Tensor, words: Tensor) -> None:
    """Assert that every node, int64 [B, K] with -1 for none, holds an eligible ad of its request.

    Args:
        nodes: of a search.
        words: int32 [S], of the exact matcher for the same requests.
    """
    nodes = nodes.to(words.device)
    request = torch.arange(len(nodes), device=words.device)[:, None]
    eligible = words[nodes.clamp_min(0)] >> request & 1 != 0
    assert (eligible | (nodes < 0)).all(), "a SID without an eligible ad"
