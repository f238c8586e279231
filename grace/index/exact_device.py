"""The exact matcher on a GPU: everything uploaded once, one small copy and one graph per batch."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from contextlib import nullcontext

import numpy as np
import torch
from torch import Tensor

from grace.index.batch import Batch
from grace.index.device_rules import DeviceIntervals, DeviceMasks, DeviceValues
from grace.index.rules import CompiledTargeting, RangeRules, RuleTables, ValueRules
from grace.index.staging import Staging
from grace.index.trie import Trie
from grace.index.verdict import Verdict
from grace.kernels.capture import Holder, capturing, own_stream
from grace.kernels.leaf_words.kernel import leaf_words_triton
from grace.kernels.segment_or.kernel import Chunks, segment_or_triton
from grace.kernels.signature_words.kernel import signature_words_triton
from grace.kernels.words import MAX_REQUESTS

CAPACITY = 2048  # values of one attribute that a batch may carry before the buffers grow
WIDE = 8  # mean children of a node from which several threads share one


class ExactOnDevice:
    """A `DeviceMatcher` that decides every prefix by its ads' own rules, beside whatever else runs.

    One batch is at work at a time. `start` returns before the device has begun; a reader makes its
    stream wait for `ready`. The next `start` waits, on the device, for what the caller's stream
    holds by then, so that words are not overwritten while they are read.

    Args:
        tables, trie, sid_ad_offsets, ad_signatures, ad_state: as for `ExactMatcher`, on the CPU.
        device: a CUDA device; the CPU only under Triton's interpreter.
        postings: see `DeviceValues`.
        child_offsets: the trie's on the device, if they are there already.
        subscribe: takes `state_changed`, before `ad_state` is read; see `Index.subscribe`. What it
            is given does not keep this object alive.

    Attributes:
        root: bool [32] on the device, of the last batch; false beyond it.
        words: int32 [S] on the device, of the last batch; the bits beyond it are clear.
        signature_words: int32 [G] on the device, of the last batch.
        live_signatures: int32 [num_ads] on the device: an ad's signature, or -1 where it may not be
            shown.
        sid_ad_offsets: on the device.
        ready: event after the last batch; None on the CPU.
        generation: 0: neither `root` nor `words` ever moves.
    """

    generation = 0

    def __init__(
        self,
        tables: RuleTables,
        trie: Trie,
        sid_ad_offsets: Tensor,
        ad_signatures: Tensor,
        ad_state: Tensor,
        device: str | torch.device = "cuda",
        postings: bool = True,
        child_offsets: Tensor | None = None,
        subscribe: Callable[[Callable[[np.ndarray], None]], None] | None = None,
    ):
        self.device = torch.device(device)
        self._num_attributes = len(tables.rules)
        self._ad_signatures, self._ad_state = ad_signatures, ad_state
        self._lock = threading.Lock()
        self._changed: list[np.ndarray] = []
        if subscribe is not None:
            subscribe(_without_owner(self.state_changed))
        self._rules: list[DeviceIntervals | DeviceMasks | DeviceValues] = [
            self._on_device(a, rules, postings) for a, rules in enumerate(tables.rules)
        ]
        self._rules.append(DeviceIntervals("at", *tables.windows.unbind(1), False, self.device))
        self._columns = [
            (_narrow(column, len(rules.words)).to(self.device), rules.words)
            for column, rules in zip(tables.signatures.unbind(1), self._rules, strict=True)
        ]
        if child_offsets is None:
            child_offsets = trie.child_offsets.to(self.device)
        self._upload(trie, child_offsets, sid_ad_offsets)
        self.signature_words = self._new(len(tables.signatures))
        self.live_signatures = torch.where(ad_state == 0, ad_signatures, -1).to(self.device)
        self._bits = torch.arange(MAX_REQUESTS, dtype=torch.int32, device=self.device)
        self._root_bits = self._new(MAX_REQUESTS)
        self.root = torch.zeros(MAX_REQUESTS, dtype=torch.bool, device=self.device)
        self.ready: torch.cuda.Event | None = None
        if self.device.type == "cuda":
            self._stream = own_stream(self, self.device)
            self.ready = torch.cuda.Event(external=True, blocking=True)
        self._prepare(CAPACITY)

    def _on_device(
        self, attribute: int, rules: RangeRules | ValueRules, postings: bool
    ) -> DeviceIntervals | DeviceMasks | DeviceValues:
        if isinstance(rules, RangeRules):
            return DeviceIntervals.of_range(f"numbers {attribute}", rules, self.device)
        if len(rules.values) <= DeviceMasks.MOST_VALUES:
            return DeviceMasks(attribute, rules, self.device)
        return DeviceValues(attribute, rules, self.device, postings)

    def _new(self, size: int) -> Tensor:
        return torch.zeros(size, dtype=torch.int32, device=self.device)

    def _upload(self, trie: Trie, child_offsets: Tensor, sid_ad_offsets: Tensor) -> None:
        bounds = trie.level_offsets.tolist()
        self.words = self._new(trie.num_nodes)
        self._leaves = self.words[bounds[-2] :]
        self.sid_ad_offsets = sid_ad_offsets.to(self.device)
        self._sid_chunks = Chunks.of(sid_ad_offsets, 8, self.device)
        self._levels = []  # (offsets, out, chunks), the lowest level first
        for level in range(trie.num_levels - 1, -1, -1):
            first, last = bounds[level], bounds[level + 1]
            wide = bounds[level + 2] - last >= WIDE * (last - first)
            on_cpu = trie.child_offsets[first : last + 1]
            chunks = None if wide else Chunks.of(on_cpu, device=self.device)
            self._levels.append((child_offsets[first : last + 1], self.words[first:last], chunks))

    def _prepare(self, capacity: int) -> None:
        """Make room for batches that carry up to `capacity` values of an attribute."""
        self._capacity = capacity
        forms = {"everyone": (torch.int32, (1,)), "num_requests": (torch.int32, (1,))}
        for rules in self._rules:
            forms |= rules.forms(capacity)
        self._staging = Staging(forms, self.device)
        if self.device.type != "cuda":
            return
        holder = Holder()  # a replay needs no branches
        self._branches = [own_stream(holder, self.device) for _ in self._rules]
        with self._side_stream():  # words that are still read are overwritten here, too
            self._enqueue()  # compiles the kernels, which a capture must not
        self._stream.synchronize()
        self._graph = torch.cuda.CUDAGraph()
        with capturing(self._graph, self._stream):
            self._enqueue()
        self._branches = []
        self.ready.record(self._stream)

    def state_changed(self, positions: np.ndarray) -> None:
        """Note that the state of the ads at some positions, int64 [n], is another one now.

        The next batch sees what `ad_state` says when it begins.
        """
        with self._lock:
            self._changed.append(np.array(positions, np.int64))

    def start(self, requests: Sequence[CompiledTargeting]) -> Verdict:
        """Enqueue the decision of every prefix for at most 32 requests.

        Raises:
            ValueError: if there are more.
        """
        batch = Batch.of(requests, self._num_attributes)
        with self._lock:
            carried = max((len(values) for values, _ in batch.carried), default=0)
            if self.ready is not None:
                self.ready.synchronize()  # the last batch has read what is written now
            if carried > self._capacity:
                self._prepare(1 << (carried - 1).bit_length())
            self._fill(batch)
            with self._side_stream():
                self._patch()
                if self.ready is None:
                    self._enqueue()
                else:
                    self._graph.replay()
                    self.ready.record(self._stream)
        return Verdict(self.root[: batch.num_requests], self.words, None, "exact, every node")

    def masks(self, nodes: Tensor, most_children: int) -> tuple[Tensor, None]:
        """Return the words; see `DeviceMatcher`."""
        return self.words, None

    def _side_stream(self):
        if self.ready is None:
            return nullcontext()
        self._stream.wait_stream(torch.cuda.current_stream(self.device))
        return torch.cuda.stream(self._stream)

    def _fill(self, batch: Batch) -> None:
        host = self._staging.host
        host["everyone"][0], host["num_requests"][0] = batch.everyone, batch.num_requests
        for attribute, rules in enumerate(self._rules[:-1]):
            if isinstance(rules, DeviceIntervals):
                rules.fill(host, batch.numbers[attribute])
            else:
                rules.fill(host, batch)
        self._rules[-1].fill(host, batch.at)

    def _patch(self) -> None:
        if not self._changed:
            return
        positions = torch.from_numpy(np.concatenate(self._changed))
        self._changed.clear()
        live = torch.where(self._ad_state[positions] == 0, self._ad_signatures[positions], -1)
        if self.device.type == "cuda":  # a copy from other memory may wait for the device
            positions, live = (array.pin_memory() for array in (positions, live))
        positions, live = (array.to(self.device, non_blocking=True) for array in (positions, live))
        self.live_signatures[positions] = live

    def _enqueue(self) -> None:
        self._staging.copy()
        self._enqueue_rules()
        signature_words_triton(
            [column for column, _ in self._columns],
            [words for _, words in self._columns],
            self.signature_words,
        )
        leaf_words_triton(
            self.signature_words, self.live_signatures, None, self.sid_ad_offsets, self._leaves,
            self._sid_chunks,
        )  # fmt: skip
        for offsets, out, chunks in self._levels:
            segment_or_triton(self.words, offsets, 1, out, chunks)
        torch.bitwise_right_shift(self.words[:1], self._bits, out=self._root_bits)
        self._root_bits.bitwise_and_(1)
        torch.ne(self._root_bits, 0, out=self.root)

    def _enqueue_rules(self) -> None:
        """Every attribute's rules, side by side: most of these kernels are tiny."""
        if self.ready is None:
            for rules in self._rules:
                rules.enqueue(self._staging.device)
            return
        main = torch.cuda.current_stream(self.device)
        for rules, branch in zip(self._rules, self._branches, strict=True):
            branch.wait_stream(main)
            with torch.cuda.stream(branch):
                rules.enqueue(self._staging.device)
        for branch in self._branches:
            main.wait_stream(branch)


def _without_owner(method: Callable[[np.ndarray], None]) -> Callable[[np.ndarray], None]:
    """A function that calls the method for as long as its object lives."""
    held = weakref.WeakMethod(method)

    def call(positions: np.ndarray) -> None:
        alive = held()
        if alive is not None:
            alive(positions)

    return call


def _narrow(column: Tensor, num_rules: int) -> Tensor:
    """The column contiguous, in the least bytes that hold its numbers."""
    if num_rules <= 1 << 8:
        return column.to(torch.uint8)
    return column.to(torch.int16) if num_rules <= 1 << 15 else column.contiguous()
