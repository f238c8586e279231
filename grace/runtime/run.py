"""One batch in flight: what it is, which of its nodes still wait, how it went."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from grace.runtime.context import Context
from grace.runtime.graph import Graph

Done = Callable[[Any, BaseException | None], None]


class Run:
    """A batch in flight. Its executor holds a lock when it calls a method.

    Attributes:
        payload, rows, done: the caller's.
        context: its memory, until it ends.
        number: counts batches from 0.
        error: the first thing that went wrong; nodes that have not begun are left out then.
    """

    __slots__ = ("_active", "_graph", "_waits", "context", "done", "error", "number", "payload",
                 "rows")  # fmt: skip

    def __init__(
        self, graph: Graph, context: Context, number: int, payload: Any, rows: int, done: Done
    ):
        self.context, self.number = context, number
        self.payload, self.rows, self.done = payload, rows, done
        self.error: BaseException | None = None
        self._graph = graph
        self._waits = [len(node.inputs) for node in graph.nodes]  # inputs that are still to come
        self._active = 1  # nodes queued or running; the submission counts as one

    def start(self, inputs: Iterable[str]) -> list[int]:
        """The submission is over; as `advance`, and nodes without inputs may run."""
        first = [i for i, waits in enumerate(self._waits) if not waits]
        return self.advance(inputs, first)

    def advance(self, written: Iterable[str], ready: Iterable[int] = ()) -> list[int]:
        """A node is over: return the nodes that may run now.

        Args:
            written: tensors that are there now.
            ready: nodes that may run whatever was written.
        """
        ready = list(ready)
        for name in written:
            for i in self._graph.readers[name]:
                self._waits[i] -= 1
                if not self._waits[i]:
                    ready.append(i)
        if self.error is not None:
            ready = []
        self._active += len(ready) - 1
        return ready

    def fail(self, error: BaseException) -> None:
        """Keep an error, if it is the first."""
        self.error = self.error or error

    @property
    def over(self) -> bool:
        """Whether no node of it runs or will run."""
        return not self._active
