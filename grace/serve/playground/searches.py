"""The searches of the playground, beside the engine's and over the same version of the index."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from grace.decode import BeamPlan, Generator
from grace.errors import GraceError
from grace.index import MATCHERS, Index
from grace.index.unions import UNIONS
from grace.retrieve import Result, Retriever
from grace.retrieve.paths import GeneratorPath, make_generator
from grace.retrieve.request import parse_request
from grace.serve.answer import Answer
from grace.serve.engine import Engine
from grace.serve.playground.explain import Tree, grow_tree

MOST_UNION_ADS = 2_000_000
"""In a larger index, unions are left to servers that match with them: they take minutes to make."""
TIMEOUT_S = 60.0
IDLE_S = 120.0
"""Searches that nobody asked for are given back after so long."""
MOMENT_S = 0.1
"""A turn is waited for so long: giving back takes one, too."""


class Busy(GraceError):
    """Somebody else's search is running."""


class Searches:
    """Answers of every matching mode to one request, and the trees behind them.

    What a mode needs is made when it is first asked for; it goes with its version of the index, or
    when nobody has asked for long. All but `served` and `modes` need a `turn`.

    Args:
        engine: answers in its own mode.
        model: `config.model`; other modes run on its `device` with its `precision`.
        idle_s: how long is long.
    """

    def __init__(self, engine: Engine, model: Any, idle_s: float = IDLE_S):
        self._engine, self._model, self._idle_s = engine, model, idle_s
        self._lock = threading.Lock()
        self._release: threading.Timer | None = None
        self._forget()

    @property
    def served(self) -> str:
        """The engine's matching mode."""
        return self._engine.retriever.matching

    @property
    def modes(self) -> tuple[str, ...]:
        """The matching modes on offer."""
        large = self._engine.index.num_ads > MOST_UNION_ADS
        left_out = set(UNIONS) - {self.served} if large else set()
        return tuple(mode for mode in MATCHERS if mode not in left_out)

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Let one caller search; serving goes on beside it.

        Raises:
            Busy: if there is one for more than a moment.
        """
        if not self._lock.acquire(timeout=MOMENT_S):
            raise Busy("somebody else is comparing right now; one comparison runs at a time")
        try:
            if self._release is not None:
                self._release.cancel()
            yield
        finally:
            self._release = threading.Timer(self._idle_s, self._release_all)
            self._release.daemon = True
            self._release.start()
            self._lock.release()

    def answer(self, raw: dict) -> Answer:
        """Return the engine's own answer, through its queue like anybody's.

        Raises:
            RequestError: if the request is wrong.
            Overloaded, Draining, Expired: as the engine raises them.
        """
        answer = self._engine.submit(raw, "playground", trace=True).future.result(TIMEOUT_S)
        if answer.error is not None:
            raise answer.error
        return answer

    def retrieve(self, index: Index, raw: dict, matching: str) -> Result:
        """Return the answer of a mode over a version of the index; it may be an error."""
        self._move_to(index)
        if matching not in self._retrievers:
            self._retrievers[matching] = Retriever(
                index, self._engine.model, self._plan, matching, self._model.device,
                batch_size=1, precision=self._model.precision, table_bytes=0,
            )  # fmt: skip
        return self._retrievers[matching].retrieve([raw], trace=True)[0]

    def tree(self, index: Index, raw: dict, matching: str) -> Tree:
        """Return how the search of a mode goes.

        Raises:
            RequestError: if the request is wrong.
        """
        self._move_to(index)
        if self._generator is None:
            self._generator = make_generator(
                self._engine.model, index, self._model.device, self._model.precision, self._plan
            )
        # Only reads the features: a tree's search runs step by step on the CPU.
        path = GeneratorPath(self._generator, index, "cpu", matching, self._plan)
        request = parse_request(raw, index, path)
        return grow_tree(self._generator, index, matching, self._plan, request)

    def _move_to(self, index: Index) -> None:
        if index is not self._index:
            self._forget()
            self._index, self._plan = index, self._engine.retriever.plan

    def _forget(self) -> None:
        self._index: Index | None = None
        self._plan: BeamPlan | None = None
        self._generator: Generator | None = None
        self._retrievers: dict[str, Retriever] = {}

    def _release_all(self) -> None:
        if self._lock.acquire(blocking=False):  # otherwise there will be another timer
            self._forget()
            self._lock.release()
