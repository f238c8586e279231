"""What one batch in flight owns: memory for every tensor, and on a GPU a stream."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from grace.runtime.graph import Graph

# Streams of this priority come from another pool than those that graphs are captured on, so a
# capture in another thread never takes in a batch's work; and a batch goes before a warm-up.
PRIORITY = -1


class Context:
    """Buffers for each tensor on each device where it is read or written.

    Attributes:
        stream: the order of all the batch's work on the GPU, or None without one.
        arrivals: by producer (None: the caller), an event after its tensors' copies to the host.
        spans: (node, instance, start, end, anchor) of each GPU node that ran; see `GpuSide`.
    """

    def __init__(self, graph: Graph):
        gpu = None if graph.gpu is None else torch.device(graph.gpu)
        self.stream = None if gpu is None else torch.cuda.Stream(gpu, priority=PRIORITY)
        self.arrivals: dict[str | None, torch.cuda.Event] = {}
        self.spans: list[tuple] = []
        self._host: dict[str, Tensor] = {}
        self._gpu: dict[str, Tensor] = {}
        self._shapes: dict[str, tuple[int, ...]] = {}
        for name, spec in graph.tensors.items():
            places = {spec.device} | {graph.nodes[i].device for i in graph.readers[name]}
            elements = math.prod(spec.shape)
            if "cpu" in places:
                crosses = len(places) > 1  # only page-locked memory is copied beside other work
                self._host[name] = torch.empty(elements, dtype=spec.dtype, pin_memory=crosses)
            if places != {"cpu"}:
                # The stream's own memory: on another's, earlier work could still be queued.
                with torch.cuda.stream(self.stream):
                    self._gpu[name] = torch.empty(elements, dtype=spec.dtype, device=gpu)

    def begin(self) -> None:
        """Forget the last batch."""
        self._shapes.clear()
        self.arrivals.clear()
        self.spans.clear()

    def set_shape(self, name: str, shape: tuple[int, ...]) -> None:
        """Say how much of a tensor this batch uses."""
        self._shapes[name] = shape

    def has(self, name: str) -> bool:
        """Whether the tensor was written for this batch."""
        return name in self._shapes

    def view(self, name: str, on_gpu: bool) -> Tensor:
        """Return the tensor in its shape of this batch: the beginning of its buffer, contiguous."""
        shape = self._shapes[name]
        buffer = (self._gpu if on_gpu else self._host)[name]
        return buffer[: math.prod(shape)].view(shape)

    def copy_over(self, name: str, to_gpu: bool) -> None:
        """Enqueue a tensor's copy to the other device on the stream."""
        with torch.cuda.stream(self.stream):
            target, source = self.view(name, to_gpu), self.view(name, not to_gpu)
            target.copy_(source, non_blocking=True)
