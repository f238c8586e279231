"""Small graphs, and a way to wait for their batches."""

from __future__ import annotations

import threading
from collections.abc import Callable

import torch

from grace.runtime import Executor, Frame, Graph, Node, TensorSpec

WAIT_S = 20.0  # for what must happen; only a failing test waits so long


class Ends:
    """Collects how batches ended, in order."""

    def __init__(self):
        self.all: list[tuple[object, BaseException | None]] = []
        self._changed = threading.Condition()

    def __call__(self, payload, error) -> None:
        with self._changed:
            self.all.append((payload, error))
            self._changed.notify_all()

    def wait(self, count: int) -> list:
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.all) >= count, WAIT_S)
            return list(self.all)

    @property
    def payloads(self) -> list:
        return [payload for payload, _ in self.all]


def spec(name: str, *shape: int, dtype=torch.float32, device: str = "cpu") -> TensorSpec:
    return TensorSpec(name, dtype, shape or (4,), device)


def chain(*stages: Callable[[Frame], None], instances: int = 1) -> Graph:
    """Stages one after another, each called with the frame; between them a tensor of one number."""
    nodes = []
    for i, stage in enumerate(stages):

        def run(frame: Frame, stage=stage, i=i) -> None:
            stage(frame)
            frame.out(f"t{i}", 1)

        reads = (f"t{i - 1}",) if i else ()
        nodes.append(Node(f"s{i}", run, reads, (spec(f"t{i}", 1),), instances=instances))
    return Graph([], nodes)


def nothing(frame: Frame) -> None:
    pass


def meet(parties: int) -> Callable[[Frame], None]:
    """A stage in which so many batches, or stages, must be at the same time to go on."""
    barrier = threading.Barrier(parties)
    return lambda frame: barrier.wait(WAIT_S) and None


def run_all(executor: Executor, payloads: list, ends: Ends) -> None:
    for payload in payloads:
        assert executor.submit(payload, 1, None, ends, WAIT_S)
    assert executor.close(timeout=WAIT_S)
