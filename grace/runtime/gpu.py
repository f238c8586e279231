"""The CUDA side of an executor: order by streams and events, copies, times."""

from __future__ import annotations

import time

import torch
from torch import Tensor

from grace.errors import ConfigError
from grace.runtime.context import Context
from grace.runtime.frame import Frame
from grace.runtime.graph import Graph, Node
from grace.runtime.timeline import Timeline

CLOCK_S = 5.0  # in this time the two clocks drift apart by less than a short kernel


class GpuSide:
    """What an executor does on its graph's GPU.

    Args:
        graph: one with a GPU.
        timeline: gets the spans of GPU nodes.

    Raises:
        ConfigError: if the GPU cannot be used.
    """

    def __init__(self, graph: Graph, timeline: Timeline | None):
        try:
            torch.zeros(1, device=graph.gpu)
        except (RuntimeError, AssertionError) as error:
            reason = str(error).splitlines()[0]
            raise ConfigError(f"device: cannot use {graph.gpu!r}: {reason}") from None
        self._graph = graph
        self._timeline = timeline
        self._last = [[torch.cuda.Event() for _ in range(n.instances)] for n in graph.nodes]
        self._clock = torch.cuda.Stream(graph.gpu)
        self._anchor: tuple[torch.cuda.Event, float] | None = None
        self.set_clock()

    def put_input(self, context: Context, name: str, tensor: Tensor) -> None:
        """Copy a caller's tensor to the GPU."""
        stream = context.stream
        if tensor.is_cuda:
            stream.wait_stream(torch.cuda.current_stream(tensor.device))
            tensor.record_stream(stream)
        with torch.cuda.stream(stream):
            context.view(name, on_gpu=True).copy_(tensor, non_blocking=tensor.is_cuda)

    def copy_over(self, context: Context, producer: str | None, names: list[str]) -> None:
        """Enqueue copies of tensors, just written by one producer, to where else they are read."""
        copied = False
        for name in names:
            here = self._graph.is_on_gpu(name)
            readers = (self._graph.nodes[i].device != "cpu" for i in self._graph.readers[name])
            if context.has(name) and any(reads != here for reads in readers):
                context.copy_over(name, to_gpu=not here)
                copied |= here
        if copied:
            # Whoever waits for it sleeps: cores are few, and others compute on them.
            event = torch.cuda.Event(blocking=True)
            event.record(context.stream)
            context.arrivals[producer] = event

    def launch(self, frame: Frame, node: Node, i: int, instance: int, context: Context) -> None:
        """Run a GPU node: it launches, nobody waits.

        Runs of one instance follow each other on the GPU, though each batch has its own stream: an
        instance may own memory that it works in.
        """
        stream, last = context.stream, self._last[i][instance]
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        with torch.cuda.stream(stream):
            stream.wait_event(last)
            start.record(stream)
            try:
                node.run(frame)
            finally:
                end.record(stream)
                last.record(stream)
                context.spans.append((i, instance, start, end, self._anchor))

    def wait_for_inputs(self, node: Node, context: Context) -> bool:
        """Sleep until what a CPU node reads has come from the GPU; whether it reads any of that.

        Nowhere else does a thread that runs nodes wait for the GPU.
        """
        producers = {self._graph.producers.get(name) for name in node.inputs}
        events = [context.arrivals[name] for name in producers if name in context.arrivals]
        for event in events:
            event.synchronize()
        return bool(events)

    def take_times(self, context: Context, batch: int, rows: int) -> list[tuple[int, int, float]]:
        """Return (node, instance, seconds) for a batch whose work has ended; note it as spans."""
        times = []
        for i, instance, start, end, anchor in context.spans:
            seconds = start.elapsed_time(end) / 1e3
            times.append((i, instance, seconds))
            if self._timeline is not None and anchor is not None:
                began = anchor[1] + anchor[0].elapsed_time(start) / 1e3
                name = self._graph.nodes[i].name
                self._timeline.add(name, instance, began, began + seconds, batch, rows, gpu=True)
        return times

    def set_clock(self) -> None:
        """Note which moment of the GPU's clock is which of ours, where a timeline needs it."""
        if self._timeline is None:
            return
        if self._anchor is not None and time.perf_counter() - self._anchor[1] < CLOCK_S:
            return
        event = torch.cuda.Event(enable_timing=True)
        event.record(self._clock)
        event.synchronize()
        self._anchor = (event, time.perf_counter())
