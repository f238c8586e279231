"""Batches through a graph: threads, contexts, order."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from grace.errors import ConfigError
from grace.runtime.batcher import Closed
from grace.runtime.context import Context
from grace.runtime.frame import Frame, check_shape
from grace.runtime.gpu import ANCHOR_S, GpuSide
from grace.runtime.graph import Graph, Node
from grace.runtime.timeline import Timeline

_log = logging.getLogger(__name__)
Done = Callable[[Any, Exception | None], None]
_LAST = float("inf")  # comes after every batch's number


class _Run:
    """A batch in flight.

    Attributes:
        waits: for each node, how many of its inputs are still to come; of the executor's lock.
        active: nodes queued or running; of the executor's lock.
        error: the first that happened; nodes that have not begun are left out then.
    """

    __slots__ = ("active", "context", "done", "error", "number", "payload", "rows", "waits")

    def __init__(self, payload: Any, rows: int, done: Done, context: Context, waits: list[int]):
        self.payload, self.rows, self.done, self.context = payload, rows, done, context
        self.number = -1
        self.waits = waits
        self.active = 0
        self.error: Exception | None = None


class Executor:
    """Runs a graph for batches; up to `contexts` of them overlap.

    A node runs on threads of its own, one an instance, as soon as its inputs are there; of several
    batches the oldest goes first. Nodes on a GPU only launch: their inputs are there once the work
    that writes them is launched on the batch's stream. A thread waits for the GPU only before a CPU node that
    reads what the GPU writes, and at a batch's end if work is still under way.

    An error in a node ends its batch alone.

    Args:
        graph: what runs.
        contexts: batches in flight at most; each has memory for every tensor.
        timeline: where spans go, if anywhere.
        freed: called whenever a context has become free, on any thread; must not block.

    Raises:
        ConfigError: if the graph's GPU is not there.
    """

    def __init__(
        self,
        graph: Graph,
        contexts: int = 3,
        timeline: Timeline | None = None,
        freed: Callable[[], None] | None = None,
    ):
        if contexts < 1:
            raise ConfigError(f"contexts must be at least 1, got {contexts}")
        self.graph = graph
        self.contexts = contexts
        self._timeline = timeline
        self._freed = freed
        self._gpu = None if graph.gpu is None else GpuSide(graph, timeline)
        self._changed = threading.Condition()
        self._free = [Context(graph) for _ in range(contexts)]
        self._live: set[_Run] = set()
        self._closed = False
        self._submitted = 0
        self._began = time.perf_counter()
        self._waits = [len(node.inputs) for node in graph.nodes]
        self._work = [[0.0] * node.instances for node in graph.nodes]
        self._queues: list[queue.PriorityQueue] = [queue.PriorityQueue() for _ in graph.nodes]
        self._ending: queue.SimpleQueue[_Run | None] = queue.SimpleQueue()
        self._threads = [
            threading.Thread(
                target=self._serve, args=(i, k), name=f"{node.name}-{k}", daemon=True
            )
            for i, node in enumerate(graph.nodes)
            for k in range(node.instances)
        ]  # fmt: skip
        if self._gpu is not None:
            self._threads.append(
                threading.Thread(target=self._serve_ends, name="gpu-end", daemon=True)
            )
        for thread in self._threads:
            thread.start()

    @property
    def free(self) -> int:
        """Contexts that are free now."""
        return len(self._free)

    def submit(
        self,
        payload: Any,
        rows: int,
        inputs: dict[str, Tensor] | None = None,
        done: Done | None = None,
        timeout: float | None = None,
    ) -> bool:
        """Start a batch when a context is free.

        Args:
            payload: an object of the caller's; every node gets it as `frame.payload`.
            rows: of the batch.
            inputs: the graph's inputs, each of its spec's dtype and no larger; copied here.
            done: called once with the payload and None, or the error that ended the batch, on a
                thread of the executor. The batch's memory stays until it returns, and its context is free after that.
            timeout: seconds to wait for a context; None waits as long as it takes, 0 not at all.

        Returns:
            Whether the batch started; False if no context became free in time.

        Raises:
            ValueError: if the inputs are not those of the graph, or rows is below 1.
            Closed: after `close`.
        """
        inputs = inputs or {}
        if rows < 1:
            raise ValueError(f"rows must be at least 1, got {rows}")
        self._check_inputs(inputs)
        with self._changed:
            self._changed.wait_for(lambda: self._free or self._closed, timeout)
            if self._closed:
                raise Closed("the executor is closed")
            if not self._free:
                return False
            run = _Run(payload, rows, done or _nothing, self._free.pop(), list(self._waits))
            run.number = self._submitted
            self._submitted += 1
            run.active = 1  # this thread
            self._live.add(run)
        run.context.begin()
        try:
            for name, tensor in inputs.items():
                self._put_input(run.context, name, tensor)
            if self._gpu is not None:
                self._gpu.copy_over(run.context, None, list(inputs))
        except Exception as error:
            run.error = error
        self._go_on(run, tuple(inputs), start=True)
        return True

    def close(self, drain: bool = True, timeout: float | None = None) -> bool:
        """Take no more batches, finish those in flight, stop the threads; may be called again.

        Not from a node or a `done`, which would wait for itself.

        Args:
            drain: whether batches in flight run to their end; else nodes that have not begun are
                left out and `done` gets `Closed`.
            timeout: seconds to wait for them; None waits as long as it takes.

        Returns:
            Whether all ended in time. If not, their threads go on until they do.
        """
        with self._changed:
            self._closed = True
            if not drain:
                for run in self._live:
                    run.error = run.error or Closed("the executor was closed")
            self._changed.notify_all()
            if not self._changed.wait_for(lambda: not self._live, timeout):
                return False
            threads, self._threads = self._threads, []
        for node, node_queue in zip(self.graph.nodes, self._queues, strict=True):
            for _ in range(node.instances):
                node_queue.put((_LAST, None))
        self._ending.put(None)
        for thread in threads:
            thread.join()
        return True

    def busy_seconds(self) -> dict[str, list[float]]:
        """Return the seconds that each instance of a node has worked, by node.

        For a node on a GPU that is the GPU's time from its first operation to its last, counted
        when the batch has ended; for a CPU node the thread's time inside `run`.
        """
        return {
            node.name: list(work) for node, work in zip(self.graph.nodes, self._work, strict=True)
        }

    def busy(self) -> dict[str, list[float]]:
        """Return `busy_seconds` as shares of the time since the executor began, 0 to 1."""
        passed = time.perf_counter() - self._began
        return {name: [s / passed for s in work] for name, work in self.busy_seconds().items()}

    def _check_inputs(self, inputs: dict[str, Tensor]) -> None:
        if set(inputs) != set(self.graph.inputs):
            expected = ", ".join(sorted(self.graph.inputs)) or "none"
            got = ", ".join(sorted(inputs)) or "none"
            raise ValueError(f"inputs: expected {expected}, got {got}")
        for name, spec in self.graph.inputs.items():
            tensor = inputs[name]
            if tensor.dtype != spec.dtype:
                raise ValueError(f"input {name!r}: expected {spec.dtype}, got {tensor.dtype}")
            check_shape(tuple(tensor.shape), spec.shape, f"input {name!r}")

    def _put_input(self, context: Context, name: str, tensor: Tensor) -> None:
        context.set_shape(name, tuple(tensor.shape))
        if not self.graph.is_on_gpu(name):
            context.view(name, on_gpu=False).copy_(tensor)
        else:
            self._gpu.put_input(context, name, tensor)

    def _serve(self, i: int, instance: int) -> None:
        node, node_queue = self.graph.nodes[i], self._queues[i]
        while (run := node_queue.get()[1]) is not None:
            if run.error is None:
                try:
                    self._run_node(run, i, instance)
                except Exception as error:
                    with self._changed:
                        run.error = run.error or error
            self._go_on(run, [spec.name for spec in node.outputs])

    def _run_node(self, run: _Run, i: int, instance: int) -> None:
        node, context = self.graph.nodes[i], run.context
        frame = Frame(self.graph, node, context, run.payload, run.rows, run.number, instance)
        if node.device != "cpu":
            self._gpu.launch(frame, node, i, instance, context)
        else:
            if self._gpu is not None:
                self._wait_for_gpu(run, node, instance)
            start = time.perf_counter()
            try:
                node.run(frame)
            finally:
                end = time.perf_counter()
                self._work[i][instance] += end - start
                self._note(node.name, instance, start, end, run)
        if self._gpu is not None:
            self._gpu.copy_over(context, node.name, [spec.name for spec in node.outputs])

    def _wait_for_gpu(self, run: _Run, node: Node, instance: int) -> None:
        start = time.perf_counter()
        if self._gpu.wait_for_inputs(node, run.context):
            end = time.perf_counter()
            self._note(node.name, instance, start, end, run, f"{node.name} waits for the GPU")

    def _note(
        self, node: str, instance: int, start: float, end: float, run: _Run, name: str | None = None
    ) -> None:
        if self._timeline is not None:
            self._timeline.add(node, instance, start, end, run.number, run.rows, name=name)

    def _go_on(self, run: _Run, written: Iterable[str], start: bool = False) -> None:
        """A node of a batch, or its submission, is over: queue what may run now, or end the batch."""
        ready = []
        with self._changed:
            if run.error is None:
                if start:
                    ready = [i for i, waits in enumerate(run.waits) if not waits]
                for name in written:
                    for i in self.graph.readers[name]:
                        run.waits[i] -= 1
                        if not run.waits[i]:
                            ready.append(i)
            run.active += len(ready) - 1
            over = not run.active
        for i in ready:
            self._queues[i].put((run.number, run))
        if over:
            self._end(run)

    def _end(self, run: _Run) -> None:
        """Free a batch's context, once the GPU has left its memory."""
        try:
            if self._gpu is not None and not run.context.stream.query():
                self._ending.put(run)
                return
            self._finish(run)
        except Exception as error:  # of the GPU
            run.error = run.error or error
            self._finish(run)

    def _serve_ends(self) -> None:
        """Wait for the GPU where a batch's last work is there."""
        while True:
            self._gpu.set_clock()
            try:
                run = self._ending.get(timeout=ANCHOR_S if self._timeline else None)
            except queue.Empty:
                continue
            if run is None:
                return
            try:
                run.context.stream.synchronize()
            except Exception as error:
                run.error = run.error or error
            self._finish(run)

    def _finish(self, run: _Run) -> None:
        if self._gpu is not None and run.error is None:
            try:
                times = self._gpu.take_times(run.context, run.number, run.rows)
                with self._changed:
                    for i, instance, seconds in times:
                        self._work[i][instance] += seconds
            except Exception as error:
                run.error = error
        try:
            run.done(run.payload, run.error)
        except Exception:
            _log.exception("the callback of batch %d failed", run.number)
        with self._changed:
            self._live.discard(run)
            self._free.append(run.context)
            self._changed.notify_all()
        if self._freed is not None:
            self._freed()


def _nothing(payload: Any, error: Exception | None) -> None:
    pass
