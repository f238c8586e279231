"""Matchers whose answers lie at fixed places on a device, so that a CUDA graph can read them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

import torch
from torch import Tensor

from grace.index.batch import Batch
from grace.index.exact import ExactMatcher
from grace.index.rules import CompiledTargeting
from grace.index.staging import Staging
from grace.index.unions import UnionMatcher
from grace.index.verdict import Verdict
from grace.kernels.match_children import RequestMasks, match_children
from grace.kernels.words import MAX_REQUESTS

PLACES = 64  # of one attribute that a request may carry before the buffers grow


class DeviceMatcher(Protocol):
    """What the search on a device asks of a matcher; one batch is at work at a time.

    Attributes:
        root: bool [32] on the device: whether a request may enter the root; false in rows beyond
            the batch, so that a search of a larger batch finds them dead.
        ready: what a reader's stream has to wait for; None on the CPU. External, so that a graph
            which waits for it waits for what was recorded last when it is replayed.
        generation: grows when a graph that holds `masks` has to be captured anew, because an
            address or a size that it read has changed.
    """

    root: Tensor
    ready: torch.cuda.Event | None
    generation: int

    def start(self, requests: Sequence[CompiledTargeting]) -> Verdict:
        """Enqueue what has to be known before a batch's first step, in place of the last batch's.

        To be called on the stream that reads: what is enqueued there by now still finds the last
        batch. The verdict's tensors are views of what this object holds.

        Raises:
            ValueError: if there are more than 32 requests.
        """

    def masks(self, nodes: Tensor, most_children: int) -> tuple[Tensor | None, Tensor | None]:
        """Enqueue what one step has to know; waits for nothing.

        Args:
            nodes: int64 [B, M], the beams' nodes; -1 for a dead beam. B may exceed the batch.
            most_children: of a node, at this level: `Trie.most_children`.

        Returns:
            `words` and `allowed` of `constrained_select`, one of them or both None.
        """


class ValidOnDevice:
    """A `DeviceMatcher` that asks nothing of requests: what the trie holds is allowed."""

    generation = 0

    def __init__(self, device: torch.device):
        self.root = torch.zeros(MAX_REQUESTS, dtype=torch.bool, device=device)
        self.ready = _event(device)
        self._rows = torch.arange(MAX_REQUESTS, device=device)

    def start(self, requests: Sequence[CompiledTargeting]) -> Verdict:
        """Mark the batch's rows; see `DeviceMatcher`."""
        _check(requests)
        with torch.cuda.device_of(self.root):
            torch.lt(self._rows, len(requests), out=self.root)
            _record(self.ready)
        return Verdict(self.root[: len(requests)], None, None, "valid")

    def masks(self, nodes: Tensor, most_children: int) -> tuple[None, None]:
        """Nothing; see `DeviceMatcher`."""
        return None, None


class ExactOnHost:
    """The exact matcher of the CPU as a `DeviceMatcher`: `start` decides every node."""

    generation = 0
    ready = None

    def __init__(self, matcher: ExactMatcher):
        self._matcher = matcher
        self.root = torch.zeros(MAX_REQUESTS, dtype=torch.bool)
        self.words = torch.zeros(matcher.trie.num_nodes, dtype=torch.int32)

    def start(self, requests: Sequence[CompiledTargeting]) -> Verdict:
        """Decide every prefix; see `DeviceMatcher`."""
        batch = Batch.of(requests, len(self._matcher.tables.rules))
        self._matcher.node_words(self._matcher.signature_words(batch), out=self.words)
        self.root.copy_(self.words[0] >> torch.arange(MAX_REQUESTS) & 1)
        return Verdict(self.root[: batch.num_requests], self.words, None, "exact, every node")

    def masks(self, nodes: Tensor, most_children: int) -> tuple[Tensor, None]:
        """Return the words; see `DeviceMatcher`."""
        return self.words, None


class UnionsOnDevice:
    """GRACE's unions as a `DeviceMatcher`: the rows uploaded once, one small copy per batch.

    Args:
        unions: the rows, on the CPU.
        child_offsets: the trie's, on the device.
        backend: of `match_children`.
    """

    def __init__(self, unions: UnionMatcher, child_offsets: Tensor, backend: str = "auto"):
        device = child_offsets.device
        self._host = unions
        self._on_device = replace(unions, child_offsets=child_offsets, rows=unions.rows.to(device))
        self._backend = backend
        self.root = torch.zeros(MAX_REQUESTS, dtype=torch.bool, device=device)
        self._root_words = torch.zeros(MAX_REQUESTS, 1, 1, dtype=torch.int32, device=device)
        # A node whose only entry is -1 has the root as its child.
        self._above_root = torch.tensor([-1, 0], device=device)
        self.ready = _event(device)
        self.generation = 0
        self._make_room(PLACES)

    def _make_room(self, places: int) -> None:
        """New buffers for requests that carry up to `places` values of an attribute."""
        rows = self._host.rows
        slots, words = len(rows.other_bits), self._host.shape.num_words
        forms = {
            "above": (torch.int64, (MAX_REQUESTS, 1)),
            "want": (torch.int64, (MAX_REQUESTS, rows.bitmask_rows.shape[1])),
            "places": (torch.int64, (MAX_REQUESTS, slots, places, words)),
            "num_places": (torch.int32, (MAX_REQUESTS, slots)),
        }
        self._places = places
        self._staging = Staging(forms, self.root.device)

    def start(self, requests: Sequence[CompiledTargeting]) -> Verdict:
        """Stage what the requests ask for and test the root; see `DeviceMatcher`."""
        _check(requests)
        masks, number = self._host.masks(requests), len(requests)
        most = masks.places.shape[2]
        with torch.cuda.device_of(self.root):
            if self.ready is not None:
                self.ready.synchronize()  # the last batch's copy has read what is written now
            if most > self._places:
                if self.ready is not None:
                    # The last batch's steps may still read the buffers that go.
                    torch.cuda.current_stream().synchronize()
                self._make_room(1 << (most - 1).bit_length())
                self.generation += 1
            host = self._staging.host
            host["above"].fill_(-1)[:number] = 0
            host["want"][:number] = masks.want
            host["places"][:number, :, :most] = masks.places
            host["num_places"][:number] = masks.num_places
            self._staging.copy()
            match_children(
                self._staging.device["above"], self._above_root, self._on_device.rows,
                self._masks(MAX_REQUESTS), self._backend, max_children=1, out=self._root_words,
            )  # fmt: skip
            torch.ne(self._root_words[:, 0, 0], 0, out=self.root)
            _record(self.ready)

        def children(nodes: Tensor) -> Tensor:
            return self._children(nodes, None)

        return Verdict(self.root[:number], None, children, self._host.name)

    def masks(self, nodes: Tensor, most_children: int) -> tuple[None, Tensor]:
        """Test the children of the beams' nodes; see `DeviceMatcher`."""
        return None, self._children(nodes, most_children)

    def _children(self, nodes: Tensor, most_children: int | None) -> Tensor:
        unions = self._on_device
        return match_children(
            nodes, unions.child_offsets, unions.rows, self._masks(len(nodes)), self._backend,
            max_children=most_children,
        )  # fmt: skip

    def _masks(self, number: int) -> RequestMasks:
        staged = self._staging.device
        return RequestMasks(*(staged[name][:number] for name in ("want", "places", "num_places")))


def _check(requests: Sequence[CompiledTargeting]) -> None:
    if len(requests) > MAX_REQUESTS:
        raise ValueError(f"a batch holds {MAX_REQUESTS} requests, got {len(requests)}")


def _event(device: torch.device) -> torch.cuda.Event | None:
    return torch.cuda.Event(external=True, blocking=True) if device.type == "cuda" else None


def _record(event: torch.cuda.Event | None) -> None:
    if event is not None:
        event.record()
