"""Batches through a graph: threads, contexts, order."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable
from typing import Any

from torch import Tensor

from grace.errors import ConfigError
from grace.runtime.batcher import Closed
from grace.runtime.context import Context
from grace.runtime.frame import Frame, check_shape
from grace.runtime.gpu import CLOCK_S, GpuSide
from grace.runtime.graph import Graph, Node
from grace.runtime.run import Done, Run
from grace.runtime.timeline import Timeline

_log = logging.getLogger(__name__)
_LAST = float("inf")  # comes after every batch's number


class Executor:
    """Runs a graph for batches; up to `contexts` of them overlap.

    A node runs on threads of its own, one an instance, as soon as its inputs are there; of several
    batches the oldest goes first. Nodes on a GPU only launch: their inputs are there once the work
    that writes them is launched on the batch's stream. A thread waits for the GPU only before a CPU
    node that reads what the GPU writes, and at a batch's end if work is still under way.

    An error in a node ends its batch alone.

    An executor lives until it is closed; `close` frees its threads.

    Args:
        graph: what runs.
        contexts: batches in flight at most; each has memory for every tensor.
        timeline: where spans go, if anywhere.
        freed: called whenever a context has become free, on any thread; must not block.

    Raises:
        ConfigError: if `contexts` is below 1 or the graph's GPU cannot be used.
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
        self._live: set[Run] = set()
        self._closed = False
        self._submitted = 0
        self._began = time.perf_counter()
        self._worked = [[0.0] * node.instances for node in graph.nodes]  # seconds
        self._queues: list[queue.PriorityQueue] = [queue.PriorityQueue() for _ in graph.nodes]
        self._ending: queue.SimpleQueue[Run | None] = queue.SimpleQueue()
        self._threads = [
            threading.Thread(target=self._serve, args=(i, k), name=f"{node.name} {k}", daemon=True)
            for i, node in enumerate(graph.nodes)
            for k in range(node.instances)
        ]
        if self._gpu is not None:
            self._threads.append(threading.Thread(target=self._serve_ends, daemon=True))
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
            inputs: the graph's inputs, each of its spec's dtype and device and no larger; copied
                before this returns.
            done: called once with the payload and None, or the error that ended the batch. It runs
                on a thread of the executor (on this one if the inputs cannot be copied) and must
                not wait for the executor. The batch's memory stays as it is until it returns; only
                then is the context free.
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
            context = self._free.pop()
            run = Run(self.graph, context, self._submitted, payload, rows, done or _nothing)
            self._submitted += 1
            self._live.add(run)
        try:
            self._put_inputs(context, inputs)
        except Exception as error:  # of the GPU, or for want of memory
            self._fail(run, error)
        with self._changed:
            ready, over = run.start(inputs), run.over
        self._go_on(run, ready, over)
        return True

    def close(self, drain: bool = True, timeout: float | None = None) -> bool:
        """Take no more batches, finish those in flight, stop the threads; may be called again.

        Not from a node or a `done`, which would wait for itself.

        Args:
            drain: whether batches in flight run to their end; else nodes that have not begun are
                left out and `done` gets `Closed`.
            timeout: seconds to wait for them; None waits as long as it takes.

        Returns:
            Whether all ended in time. If not, they go on, and so do the threads.
        """
        with self._changed:
            self._closed = True
            if not drain:
                for run in self._live:
                    run.fail(Closed("the executor was closed"))
            self._changed.notify_all()
            if not self._changed.wait_for(lambda: not self._live, timeout):
                return False
            threads, self._threads = self._threads, []
        for node, waiting in zip(self.graph.nodes, self._queues, strict=True):
            for _ in range(node.instances):
                waiting.put((_LAST, None))
        self._ending.put(None)
        for thread in threads:
            thread.join()
        return True

    def busy_seconds(self) -> dict[str, list[float]]:
        """Return the seconds that each instance of a node has worked, by node.

        For a GPU node that is the GPU's time from its first operation to its last, counted when
        the batch has ended; for a CPU node its thread's time inside `run`.
        """
        pairs = zip(self.graph.nodes, self._worked, strict=True)
        return {node.name: list(worked) for node, worked in pairs}

    def busy(self) -> dict[str, list[float]]:
        """Return `busy_seconds` as shares of the time since the executor began, 0 to 1.

        For the share of a shorter time, subtract two readings of `busy_seconds`.
        """
        busy = self.busy_seconds()
        passed = time.perf_counter() - self._began
        return {name: [seconds / passed for seconds in worked] for name, worked in busy.items()}

    def _check_inputs(self, inputs: dict[str, Tensor]) -> None:
        if set(inputs) != set(self.graph.inputs):
            expected = ", ".join(sorted(self.graph.inputs)) or "none"
            got = ", ".join(sorted(inputs)) or "none"
            raise ValueError(f"inputs: expected {expected}, got {got}")
        for name, spec in self.graph.inputs.items():
            tensor, where = inputs[name], f"input {name!r}"
            kind = spec.device.partition(":")[0]
            if tensor.dtype != spec.dtype or tensor.device.type != kind:
                got = f"{tensor.dtype} on {tensor.device}"
                raise ValueError(f"{where}: expected {spec.dtype} on {spec.device}, got {got}")
            check_shape(tuple(tensor.shape), spec.shape, where)

    def _put_inputs(self, context: Context, inputs: dict[str, Tensor]) -> None:
        context.begin()
        for name, tensor in inputs.items():
            context.set_shape(name, tuple(tensor.shape))
            if self.graph.is_on_gpu(name):
                self._gpu.put_input(context, name, tensor)
            else:
                context.view(name, on_gpu=False).copy_(tensor)
        if self._gpu is not None:
            self._gpu.copy_over(context, None, inputs)

    def _serve(self, i: int, instance: int) -> None:
        while self._serve_one(i, instance):
            pass

    def _serve_one(self, i: int, instance: int) -> bool:
        """Run a node for the next batch; no name outlives it that would keep the batch alive."""
        run = self._queues[i].get()[1]
        if run is None:
            return False
        node = self.graph.nodes[i]
        if run.error is None:
            try:
                self._run_node(run, node, i, instance)
            except BaseException as error:  # even SystemExit: this thread belongs to all batches
                self._fail(run, error)
        with self._changed:
            ready, over = run.advance([spec.name for spec in node.outputs]), run.over
        self._go_on(run, ready, over)
        return True

    def _run_node(self, run: Run, node: Node, i: int, instance: int) -> None:
        context = run.context
        frame = Frame(self.graph, node, context, run.payload, run.rows, run.number, instance)
        if node.device != "cpu":
            self._gpu.launch(frame, node, i, instance, context)
        else:
            start = time.perf_counter()
            if self._gpu is not None and self._gpu.wait_for_inputs(node, context):
                waited = time.perf_counter()
                self._note(run, node, instance, start, waited, f"{node.name} waits for the GPU")
                start = waited
            try:
                node.run(frame)
            finally:
                end = time.perf_counter()
                self._worked[i][instance] += end - start
                self._note(run, node, instance, start, end)
        if self._gpu is not None:
            self._gpu.copy_over(context, node.name, [spec.name for spec in node.outputs])

    def _note(
        self, run: Run, node: Node, instance: int, start: float, end: float, name: str | None = None
    ) -> None:
        if self._timeline is not None:
            self._timeline.add(
                node.name, instance, start, end, batch=run.number, rows=run.rows, name=name
            )

    def _fail(self, run: Run, error: BaseException) -> None:
        with self._changed:
            run.fail(error)

    def _go_on(self, run: Run, ready: list[int], over: bool) -> None:
        for i in ready:
            self._queues[i].put((run.number, run))
        if over:
            self._end(run)

    def _end(self, run: Run) -> None:
        """Finish a batch whose nodes are over, once the GPU has left its memory."""
        if self._gpu is not None:
            try:
                if not run.context.stream.query():
                    self._ending.put(run)
                    return
            except RuntimeError as error:
                self._fail(run, error)
        self._finish(run)

    def _serve_ends(self) -> None:
        while self._serve_end():
            pass

    def _serve_end(self) -> bool:
        """Wait for the GPU to end the next batch whose nodes are over before its work is."""
        self._gpu.set_clock()
        try:
            run = self._ending.get(timeout=CLOCK_S)
        except queue.Empty:
            return True
        if run is None:
            return False
        try:
            run.context.stream.synchronize()
        except RuntimeError as error:
            self._fail(run, error)
        self._finish(run)
        return True

    def _finish(self, run: Run) -> None:
        if self._gpu is not None:
            self._count_gpu_times(run)
        try:
            run.done(run.payload, run.error)
        except BaseException:
            _log.exception("the callback of batch %d failed", run.number)
        with self._changed:
            self._live.discard(run)
            self._free.append(run.context)
            self._changed.notify_all()
        if self._freed is not None:
            try:
                self._freed()
            except BaseException:
                _log.exception("the callback for a free context failed")

    def _count_gpu_times(self, run: Run) -> None:
        try:
            times = self._gpu.take_times(run.context, run.number, run.rows)
        except RuntimeError as error:  # where the GPU has failed, its events fail too
            self._fail(run, error)
            return
        with self._changed:
            for i, instance, seconds in times:
                self._worked[i][instance] += seconds


def _nothing(payload: Any, error: BaseException | None) -> None:
    """Take a batch's end that nobody asked for."""
