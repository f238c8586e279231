"""What runs for every batch: nodes, the tensors between them, checked before anything runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from grace.errors import ConfigError

if TYPE_CHECKING:
    from grace.runtime.frame import Frame


@dataclass(frozen=True)
class TensorSpec:
    """A tensor between nodes, at the largest it gets; memory for it is set aside once.

    Attributes:
        name: its own in the graph.
        dtype: of its elements.
        shape: the most of each dimension; the first is the batch.
        device: of its producer, "cpu", "cuda" or "cuda:N". Nodes elsewhere get a copy.
    """

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    device: str = "cpu"


@dataclass(frozen=True)
class Node:
    """A stage: reads tensors, writes tensors, on one device.

    Attributes:
        name: its own in the graph.
        run: called once a batch, on a thread of the node. On a GPU it only launches work on the
            current stream (`frame.stream`) and never waits for it.
        inputs: names of the tensors it reads; it runs when all are there.
        outputs: what it writes, all on its device.
        device: "cpu", "cuda" or "cuda:N"; all GPU nodes of a graph name the same.
        instances: batches that may be inside `run` at once, each on a thread of its own. With one,
            batches pass in order, and `run` may keep memory of its own; with more, memory is
            kept by `frame.instance`. On a GPU the launches of one instance run one after another.
    """

    name: str
    run: Callable[[Frame], None]
    inputs: tuple[str, ...] = ()
    outputs: tuple[TensorSpec, ...] = ()
    device: str = "cpu"
    instances: int = 1


class Graph:
    """Nodes in an order in which they can run.

    Args:
        inputs: tensors that a caller gives with each batch.
        nodes: in any order.

    Attributes:
        inputs: by name.
        nodes: sorted, producers first.
        tensors: every tensor by name.
        producers: the node that writes a tensor, by tensor; inputs have none.
        readers: indices into `nodes` of those that read a tensor, by tensor.
        gpu: "cuda" or "cuda:N" where a node or an input is there, else None.

    Raises:
        ConfigError: naming the node and tensor, if a name comes twice, a tensor has no or two
            producers, nodes wait for each other in a circle, a spec is no tensor's, an output is
            not on its node's device, or there are two GPUs.
    """

    def __init__(self, inputs: Sequence[TensorSpec], nodes: Sequence[Node]):
        if not nodes:
            raise ConfigError("a graph needs at least one node")
        for node in nodes:
            _check_node(node)
        _check_unique([node.name for node in nodes], "two nodes are named")
        for spec in inputs:
            _check_spec(spec, "graph input")
        _check_unique([spec.name for spec in inputs], "two graph inputs are named")
        self.inputs = {spec.name: spec for spec in inputs}
        self.tensors = dict(self.inputs)
        self.producers: dict[str, str] = {}
        for node in nodes:
            for spec in node.outputs:
                if spec.name in self.tensors:
                    other = self.producers.get(spec.name)
                    what = "a graph input" if other is None else f"written by node {other!r}"
                    raise ConfigError(f"node {node.name!r}: output {spec.name!r} is already {what}")
                self.tensors[spec.name] = spec
                self.producers[spec.name] = node.name
        for node in nodes:
            for name in node.inputs:
                if name not in self.tensors:
                    known = ", ".join(sorted(self.tensors)) or "none"
                    raise ConfigError(
                        f"node {node.name!r}: nothing writes its input {name!r} (tensors: {known})"
                    )
        self.nodes = _sort(nodes, self.producers)
        self.readers = {
            name: tuple(i for i, node in enumerate(self.nodes) if name in node.inputs)
            for name in self.tensors
        }
        for name in self.inputs:
            if not self.readers[name]:
                raise ConfigError(f"graph input {name!r}: no node reads it")
        self.gpu = _one_gpu(self.inputs, self.nodes)

    def is_on_gpu(self, name: str) -> bool:
        """Whether the producer of this tensor writes it on the GPU."""
        return self.tensors[name].device != "cpu"


def _check_node(node: Node) -> None:
    where = f"node {node.name!r}"
    if not isinstance(node.name, str) or not node.name:
        raise ConfigError(f"{where}: a name must be a string and not empty")
    if not callable(node.run):
        raise ConfigError(f"{where}: run must be callable, got {node.run!r}")
    if isinstance(node.inputs, str):
        raise ConfigError(f"{where}: inputs must be a tuple of names, got {node.inputs!r}")
    if type(node.instances) is not int or node.instances < 1:
        raise ConfigError(f"{where}: instances must be at least 1, got {node.instances!r}")
    _check_device(node.device, where)
    _check_unique(node.inputs, f"{where} lists an input twice:")
    for spec in node.outputs:
        _check_spec(spec, f"{where}: output")
        if spec.device != node.device:
            raise ConfigError(
                f"{where}: output {spec.name!r} is on {spec.device!r}, but the node on "
                f"{node.device!r}; give it the node's device, readers elsewhere get a copy"
            )


def _check_spec(spec: TensorSpec, where: str) -> None:
    where = f"{where} {spec.name!r}"
    if not isinstance(spec.name, str) or not spec.name:
        raise ConfigError(f"{where}: a name must be a string and not empty")
    if not isinstance(spec.dtype, torch.dtype):
        raise ConfigError(f"{where}: dtype must be a torch.dtype, got {spec.dtype!r}")
    sizes = spec.shape
    if not isinstance(sizes, tuple) or not sizes or any(type(n) is not int or n < 1 for n in sizes):
        raise ConfigError(f"{where}: shape must be a tuple of sizes of at least 1, got {sizes!r}")
    _check_device(spec.device, where)


def _check_device(device: str, where: str) -> None:
    kind, _, number = device.partition(":") if isinstance(device, str) else ("", "", "")
    if not (device == "cpu" or device == "cuda" or (kind == "cuda" and number.isdecimal())):
        raise ConfigError(f"{where}: device must be 'cpu', 'cuda' or 'cuda:N', got {device!r}")


def _check_unique(names: Sequence[str], what: str) -> None:
    seen = set()
    for name in names:
        if name in seen:
            raise ConfigError(f"{what} {name!r}")
        seen.add(name)


def _sort(nodes: Sequence[Node], producers: dict[str, str]) -> tuple[Node, ...]:
    """Return producers before readers, else in the order given."""
    done: set[str] = set()
    ordered: list[Node] = []
    rest = list(nodes)
    while rest:
        ready = [n for n in rest if all(producers.get(i) in done | {None} for i in n.inputs)]
        if not ready:
            raise ConfigError(f"nodes wait for each other: {_circle(rest, producers)}")
        ordered += ready
        done |= {node.name for node in ready}
        rest = [node for node in rest if node.name not in done]
    return tuple(ordered)


def _circle(nodes: list[Node], producers: dict[str, str]) -> str:
    """Return one circle among nodes none of which can run first, as text."""
    left = {node.name: node for node in nodes}
    path: list[tuple[str, str]] = []  # a node and the input it waits for
    name = nodes[0].name
    while name not in [n for n, _ in path]:
        waits = next(i for i in left[name].inputs if producers.get(i) in left)
        path.append((name, waits))
        name = producers[waits]
    start = [n for n, _ in path].index(name)
    return ", ".join(f"{n!r} reads {i!r} of {producers[i]!r}" for n, i in path[start:])


def _one_gpu(inputs: dict[str, TensorSpec], nodes: Sequence[Node]) -> str | None:
    found = {f"input {spec.name!r}": spec.device for spec in inputs.values()}
    found |= {f"node {node.name!r}": node.device for node in nodes}
    gpus = {where: device for where, device in found.items() if device != "cpu"}
    if len(set(gpus.values())) > 1:
        listed = ", ".join(f"{where} on {device!r}" for where, device in gpus.items())
        raise ConfigError(f"a graph runs on one GPU, named one way: {listed}")
    return next(iter(gpus.values()), None)
