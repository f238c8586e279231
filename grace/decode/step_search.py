"""Searches with a `StepDecoder`: one CUDA graph a batch size, or directly on a CPU."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

from grace.decode.beams import BeamCopies, Beams
from grace.decode.plan import BeamPlan
from grace.decode.steps import Entering, StepBuffers, run_steps
from grace.errors import ConfigError
from grace.kernels.capture import capturing, own_stream
from grace.kernels.constrained_select import Workspace
from grace.kernels.logsumexp import logsumexp
from grace.model.prefix_tables import build_prefix_tables
from grace.progress import progress

if TYPE_CHECKING:
    from grace.index.device_matchers import DeviceMatcher
    from grace.index.trie import Trie
    from grace.model.step_decoder import StepDecoder

BUCKETS = (1, 2, 4, 8, 16, 32)
"""Batch sizes that get a graph; a batch runs in the least that holds it, its spare rows dead."""


class ContextSource(Protocol):
    """Computes contexts from inputs in memory that stays in place, so that a graph may hold it."""

    def place(self, inputs: Any, batch: int) -> None:
        """Enqueue copies of the inputs of a search to where `context` finds them."""

    def context(self, batch: int) -> Tensor:
        """Enqueue the contexts, `[batch, T, model_dim]`, of the first requests of that memory.

        Rows that hold no request of now hold one of before, or zeros; what comes of them is dead.
        """


@dataclass(frozen=True)
class Launched:
    """A search under way.

    Attributes:
        copies: where its result goes.
        vocab_size: V, the model's.
        done: event after the copies; None where they are there already.
    """

    copies: BeamCopies
    vocab_size: int
    done: torch.cuda.Event | None

    def wait(self) -> Beams:
        """Return the SIDs of each request, on the CPU, when they are there."""
        if self.done is not None:
            self.done.synchronize()
        return self.copies.beams(self.vocab_size)


class StepSearch:
    """Beam search over a trie for up to `max_batch` requests at a time.

    On a CUDA device each bucket's L steps are one graph, captured here, replayed by `launch`, and
    captured anew where the matcher's memory has moved. Buckets share contexts, keys, values and
    workspace: searches run one after the other, on a stream of the search's own, however many have
    been launched. Two of them at once need two objects.

    Args:
        decoder: the model's steps.
        trie: on the decoder's device.
        matcher: says what requests may enter, from memory that stays in place; None for the whole
            trie.
        plan: no wider than the trie.
        max_batch: the most requests of a search.
        num_context: T, context tokens of a request.
        ragged: whether requests have context tokens of their own number.
        table_bytes: the most memory that prefix tables may take.
        buckets: batch sizes that get a graph, ascending; the last holds `max_batch`.
        source: computes contexts as the first part of each graph, a batch of the bucket's size;
            None where `launch` is given them.

    Attributes:
        tables: the prefix tables, or None.

    Raises:
        ConfigError: if no bucket holds `max_batch`, or the device has too little memory, with what
            is needed and what is free.
    """

    def __init__(
        self,
        decoder: StepDecoder,
        trie: Trie,
        matcher: DeviceMatcher | None,
        plan: BeamPlan,
        max_batch: int,
        num_context: int,
        ragged: bool = False,
        table_bytes: int = 0,
        buckets: Sequence[int] = BUCKETS,
        source: ContextSource | None = None,
    ):
        self._source = source
        self.decoder, self.trie, self.matcher, self.plan = decoder, trie, matcher, plan
        self.max_batch, self._num_context, self._ragged = max_batch, num_context, ragged
        self._device, self._vocab_size = decoder.device, decoder.config.vocab_size
        self._lock = threading.Lock()
        self._graphs: dict[int, torch.cuda.CUDAGraph] = {}
        self._buffers: dict[int, StepBuffers] = {}
        self.buckets = fitting_buckets(max_batch, buckets)
        on_gpu = self._device.type == "cuda"
        self._stream = own_stream(self, self._device) if on_gpu else None
        with self._room():
            self.tables = build_prefix_tables(decoder, trie, table_bytes) if table_bytes else None
            if on_gpu:
                self._allocate(self.buckets[-1])
                self._capture_all()

    def run(self, context: Tensor, lengths: Tensor | None = None, trace: bool = False) -> Beams:
        """Search for B requests that the matcher has been started with; `launch`, and wait."""
        return self.launch(context, lengths, trace).wait()

    @torch.inference_mode()
    def launch(
        self,
        context: Tensor,
        lengths: Tensor | None = None,
        trace: bool = False,
        copies: BeamCopies | None = None,
    ) -> Launched:
        """Enqueue a search for B requests that the matcher has been started with.

        On a GPU nothing here waits for the search, and the next one may be launched at once: it
        runs after this one, over the same memory. Its matcher has to be started inside
        `on_stream`, so that it, too, leaves alone what this search still reads. On a CPU the search
        is over when this returns.

        Args:
            context: `[B, T, model_dim]` of the encoder, on the decoder's device; work on the
                current stream up to now is waited for.
            lengths: int32 `[B]`; only where the search is ragged.
            trace: whether the result tells which beams entered each step.
            copies: where the result goes, of `new_copies`, the caller's until it has been read;
                new memory if None.

        Raises:
            ValueError: if there are no requests, or more than `max_batch`.
            ConfigError: if graphs have to be captured anew and the device has too little memory.
        """

        def load() -> None:
            for tensor in (context, lengths):
                if tensor is not None and self._stream is not None:
                    tensor.record_stream(self._stream)  # its owner may let it go before it is read
            self.decoder.load(self._memory, context, lengths)

        return self._launch(len(context), load, trace, copies)

    @torch.inference_mode()
    def launch_inputs(
        self, inputs: Any, batch: int, trace: bool = False, copies: BeamCopies | None = None
    ) -> Launched:
        """Do what `launch` does, from what the search's source makes contexts of.

        Args:
            inputs: as `ContextSource.place` takes them; not to be let go before the search is over.
            batch: B.
            trace, copies: as of `launch`.

        Raises:
            ValueError, ConfigError: as `launch`.
        """
        return self._launch(batch, lambda: self._source.place(inputs, batch), trace, copies)

    def _launch(
        self, batch: int, load: Callable[[], None], trace: bool, copies: BeamCopies | None
    ) -> Launched:
        if not 1 <= batch <= self.max_batch:
            raise ValueError(f"context must be of 1 to {self.max_batch} requests, got {batch}")
        with self._lock, self.on_stream():
            search = self._run_directly if self._stream is None else self._replay
            buffers = search(batch, load)
            copies = BeamCopies.like(buffers) if copies is None else copies
            copies.take(buffers, batch, trace)
            done = None if self._stream is None else torch.cuda.Event(blocking=True)
            if done is not None:
                done.record()
        return Launched(copies, self._vocab_size, done)

    def new_copies(self) -> BeamCopies:
        """Return memory for the results of one search at a time, of any size."""
        widths = (*self.plan.widths, self.plan.num_sids)
        return BeamCopies(self.buckets[-1], widths, self._stream is not None)

    @contextlib.contextmanager
    def on_stream(self) -> Iterator[None]:
        """Enqueue the block's work behind the searches launched so far, and behind the caller's."""
        if self._stream is None:
            yield
            return
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            yield

    @property
    def num_bytes(self) -> int:
        """Bytes of contexts, keys, values, beams and selections, the last batch's on a CPU.

        Tables are not in it, nor what the steps hold in between.
        """
        if not self._buffers:
            return 0
        beams = sum(buffers.num_bytes for buffers in self._buffers.values())
        return self._memory.num_bytes + self._workspace.num_bytes + beams

    def _run_directly(self, batch: int, load: Callable[[], None]) -> StepBuffers:
        if batch not in self._buffers:
            self._allocate(batch)
        load()
        self._enqueue(batch)
        return self._buffers[batch]

    def _replay(self, batch: int, load: Callable[[], None]) -> StepBuffers:
        bucket = next(b for b in self.buckets if b >= batch)
        if self.matcher is not None and self.matcher.generation != self._generation:
            self._stream.synchronize()  # no graph may be in flight when it goes away
            with self._room():
                self._capture_all()
        load()
        self._admit(batch, bucket)
        self._graphs[bucket].replay()
        return self._buffers[bucket]

    def _allocate(self, batch: int) -> None:
        steps = zip(self.plan.widths, (*self.plan.widths[1:], self.plan.num_sids),
                    self.trie.most_children, strict=True)  # fmt: skip
        self._memory = self.decoder.memory(batch, self.plan.widths, self._num_context, self._ragged)
        self._workspace = Workspace.for_steps(batch, steps, self._device)
        self._allowed = torch.ones(batch, dtype=torch.bool, device=self._device)
        self._buffers = {batch: StepBuffers.allocate(batch, self.plan, self._device)}

    def _capture_all(self) -> None:
        """Capture every bucket, the largest first: the others fit into what it leaves."""
        generation = None if self.matcher is None else self.matcher.generation
        self._graphs.clear()
        pool = torch.cuda.graph_pool_handle()
        with torch.inference_mode(), progress("capturing graphs", len(self.buckets)) as advance:
            for bucket in reversed(self.buckets):
                if bucket not in self._buffers:
                    self._buffers[bucket] = StepBuffers.allocate(bucket, self.plan, self._device)
                self._capture(bucket, pool)
                advance(1)
        self._generation = generation  # only now: what fails is tried again by the next search

    @contextlib.contextmanager
    def _room(self) -> Iterator[None]:
        """Say what does not fit on the device, and what to do."""
        try:
            yield
        except RuntimeError as error:  # not all that runs out of memory has a type of its own
            if self._device.type != "cuda" or "out of memory" not in str(error):
                raise
            free, _ = torch.cuda.mem_get_info(self._device)
            raise ConfigError(
                f"decoding {self.buckets[-1]} requests with widths {self.plan.widths} and "
                f"{self.plan.num_sids} SIDs does not fit on {self._device}: {free / 1e9:.1f} GB "
                f"are free ({str(error).splitlines()[0]}); lower batch_size, the plan's widths or "
                "table_bytes"
            ) from None

    def _capture(self, bucket: int, pool: tuple[int, int]) -> None:
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):  # compiles and tunes, which a capture must not
            if self._source is None:
                size = (bucket, self._num_context, self.decoder.config.model_dim)
                self.decoder.load(self._memory, torch.zeros(size, device=self._device))
            self._enqueue(bucket)
        self._stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with capturing(graph, self._stream, pool):
            self._enqueue(bucket)
        self._graphs[bucket] = graph

    def _admit(self, batch: int, bucket: int) -> None:
        """Say which rows of a bucket are requests; a matcher says so itself."""
        if self.matcher is None:
            self._allowed[:batch] = True
            self._allowed[batch:bucket] = False

    def _enqueue(self, batch: int) -> None:
        if self._source is not None:
            self.decoder.load(self._memory, self._source.context(batch))
        state = self.decoder.start(self._memory.front(batch), self.tables)

        def score(entering: Entering, t: int, out: Tensor) -> Tensor:
            rows = (entering.parents, entering.tokens)
            columns = self.decoder.step(state, *rows, t, entering.nodes, entering.prefixes)
            logsumexp(columns, out=out)
            return columns

        def admit() -> Tensor:
            if self.matcher is None:
                return self._allowed[:batch]
            if self.matcher.ready is not None:
                # In a graph, too: a replay waits for the matcher's latest batch.
                torch.cuda.current_stream(self._device).wait_event(self.matcher.ready)
            return self.matcher.root[:batch]

        run_steps(score, self.trie, self._masks, admit, self._buffers[batch], self._workspace)

    def _masks(self, nodes: Tensor, most: int) -> tuple[Tensor | None, Tensor | None]:
        return (None, None) if self.matcher is None else self.matcher.masks(nodes, most)


def fitting_buckets(max_batch: int, buckets: Sequence[int] = BUCKETS) -> tuple[int, ...]:
    """Return the buckets that batches of up to `max_batch` requests need.

    Raises:
        ConfigError: if there is none that holds them.
    """
    if not 1 <= max_batch <= buckets[-1]:
        raise ConfigError(f"a batch must be from 1 to {buckets[-1]} requests, got {max_batch}")
    return tuple(b for b, before in zip(buckets, (0, *buckets), strict=False) if before < max_batch)
