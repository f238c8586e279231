"""What a node sees of one batch."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from grace.runtime.context import Context
from grace.runtime.graph import Graph, Node


class Frame:
    """One batch, as one node may see it: its own inputs and outputs, on its device.

    Tensors are views of memory that a later batch will use: they are good until the batch's `done`
    returns.

    Attributes:
        payload: the caller's own object for this batch, passed on untouched.
        batch: rows of this batch.
        number: of this batch, counted from 0 in order of submission.
        instance: which of the node's instances runs, from 0.
        stream: the batch's CUDA stream on a GPU node, where it is current; None on a CPU node.
    """

    __slots__ = ("_context", "_graph", "_node", "batch", "instance", "number", "payload", "stream")

    def __init__(
        self, graph: Graph, node: Node, context: Context,
        payload: Any, batch: int, number: int, instance: int,
    ):  # fmt: skip
        self._graph, self._node, self._context = graph, node, context
        self.payload, self.batch, self.number, self.instance = payload, batch, number, instance
        self.stream: torch.cuda.Stream | None = None if node.device == "cpu" else context.stream

    def __getitem__(self, name: str) -> Tensor:
        """Return an input in the shape that its producer gave it, on the node's device.

        Raises:
            KeyError: if it is none of the node's inputs, or its producer did not write it.
        """
        if name not in self._node.inputs:
            raise KeyError(f"node {self._node.name!r} reads {name!r}, which is not in its inputs")
        if not self._context.has(name):
            producer = self._graph.producers.get(name)
            raise KeyError(f"node {producer!r} did not write {name!r} for this batch")
        return self._context.view(name, self._node.device != "cpu")

    def out(self, name: str, *shape: int) -> Tensor:
        """Return the memory of an output, to be written whole: it still holds an earlier batch's.

        Args:
            name: one of the node's outputs.
            shape: its shape for this batch, no dimension larger than in its spec; without any,
                `batch` rows of the spec's other dimensions.

        Raises:
            KeyError: if it is none of the node's outputs.
            ValueError: if the shape does not fit.
        """
        spec = next((spec for spec in self._node.outputs if spec.name == name), None)
        if spec is None:
            raise KeyError(f"node {self._node.name!r} writes {name!r}, which is not in its outputs")
        shape = shape or (self.batch, *spec.shape[1:])
        check_shape(shape, spec.shape, f"node {self._node.name!r}: output {name!r}")
        self._context.set_shape(name, shape)
        return self._context.view(name, self._node.device != "cpu")


def check_shape(shape: tuple[int, ...], most: tuple[int, ...], where: str) -> None:
    """Raise ValueError if a shape does not fit into the memory set aside."""
    fits = len(shape) == len(most) and all(0 <= n <= m for n, m in zip(shape, most, strict=True))
    if not fits:
        raise ValueError(f"{where}: expected a shape of at most {list(most)}, got {list(shape)}")
