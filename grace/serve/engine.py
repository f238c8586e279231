"""Requests in from any thread, batches through a retriever, answers out."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import OrderedDict, deque
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import numpy as np

from grace.decode import BeamPlan
from grace.errors import GraceError, RequestError
from grace.index import Index
from grace.index.reader import IndexReader
from grace.retrieve import Retriever
from grace.serve.answer import Answer

_log = logging.getLogger(__name__)


class Overloaded(GraceError):
    """The queue is full; `retry_after_s` says when to come back."""

    def __init__(self, message: str, retry_after_s: float):
        super().__init__(message)
        self.retry_after_s = retry_after_s


class Draining(GraceError):
    """The server is going down and takes no new requests."""


class Expired(GraceError):
    """The request's deadline passed before its batch began; nothing was computed for it."""


@dataclass(frozen=True, kw_only=True)
class EngineOptions:
    """How requests become batches.

    Attributes:
        max_batch: the most requests of a batch.
        max_wait_ms: how long the first request of a batch waits for others while the device is
            idle; 0 starts at once, and what comes while the device is busy forms the next batch.
        max_admitted: the most requests in the engine, waiting or in a batch; more are refused.
        timeout_ms: the deadline of a request that names none.
        contexts: batches in flight.
    """

    max_batch: int = 16
    max_wait_ms: float = 0.0
    max_admitted: int = 256
    timeout_ms: float = 1000.0
    contexts: int = 3


@dataclass(frozen=True)
class Ticket:
    """One admitted request.

    Attributes:
        future: gives an `Answer`, or raises `Expired`, `Draining` or what went wrong.
    """

    future: Future[Answer]
    raw: dict
    client: str
    deadline: float
    submitted: float
    trace: bool = False

    def cancel(self) -> None:
        """Forget the request: the client is gone. One whose batch has begun runs to its end."""
        self.future.cancel()


class Engine:
    """Answers requests of many clients from the newest version of an index.

    Args:
        index: a directory, which is followed, or an opened `Index`.
        model: as `Retriever` takes it.
        plan: widths of the search.
        options: of batching and admission.
        retriever: all other options of `Retriever`.

    Raises:
        ConfigError, IndexFormatError, ModelError: as `Retriever` and `Index.open` raise them.
    """

    def __init__(
        self,
        index: Index | str | os.PathLike,
        model: Any,
        plan: BeamPlan | None = None,
        options: EngineOptions | None = None,
        **retriever: Any,
    ):
        self.options = options or EngineOptions()
        if isinstance(model, (str, os.PathLike)):
            from grace.model.folder import open_model

            model = open_model(model)

        def prepare(version: Index) -> Retriever:
            return Retriever(version, model, plan, batch_size=self.options.max_batch, **retriever)

        self.reader = None if isinstance(index, Index) else IndexReader(index, prepare)
        self._fixed = prepare(index) if isinstance(index, Index) else None
        self._changed = threading.Condition()
        self._waiting: OrderedDict[str, deque[Ticket]] = OrderedDict()  # by client
        self._admitted = 0
        self._draining = False
        self._thread = threading.Thread(target=self._serve, name="grace-engine", daemon=True)
        self._thread.start()

    @property
    def index(self) -> Index:
        """The version that the next batch will be answered from."""
        return self.retriever.index

    @property
    def retriever(self) -> Retriever:
        """Over that version."""
        return self._fixed if self.reader is None else self.reader.prepared

    def submit(
        self,
        raw: dict,
        client: str = "",
        timeout_ms: float | None = None,
        trace: bool = False,
    ) -> Ticket:
        """Admit a request.

        Args:
            raw: as `Retriever.retrieve` takes it; what is wrong with it is in its answer.
            client: whose it is; clients take turns.
            timeout_ms: from now to its deadline.
            trace: whether the answer tells how the search went.

        Raises:
            Overloaded: if the engine holds as many requests as it may.
            Draining: if it is going down.
        """
        now = time.monotonic()
        timeout = self.options.timeout_ms if timeout_ms is None else timeout_ms
        ticket = Ticket(Future(), raw, client, now + timeout / 1e3, now, trace)
        with self._changed:
            if self._draining:
                raise Draining("the server is going down")
            if self._admitted >= self.options.max_admitted:
                raise Overloaded(f"{self._admitted} requests are waiting, the most allowed", 0.05)
            self._admitted += 1
            self._waiting.setdefault(client, deque()).append(ticket)
            self._changed.notify()
        return ticket

    def drain(self, timeout_s: float = 30.0) -> bool:
        """Take no more requests, answer those admitted, stop; whether all were answered in time."""
        with self._changed:
            self._draining = True
            self._changed.notify()
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def status(self) -> dict:
        """Return `{"version", "admitted", "draining", "failure"}`."""
        failure = None if self.reader is None else self.reader.failure
        return {
            "version": self.index.version,
            "admitted": self._admitted,
            "draining": self._draining,
            "failure": None if failure is None else str(failure),
        }

    def _serve(self) -> None:
        while batch := self._next_batch():
            try:
                self._answer(batch)
            except Exception as error:
                _log.exception("a batch failed")
                for ticket in batch:
                    ticket.future.set_exception(error)

    def _next_batch(self) -> list[Ticket]:
        with self._changed:
            while True:
                self._changed.wait_for(lambda: self._waiting or self._draining)
                if not self._waiting:
                    return []
                batch = []
                while self._waiting and len(batch) < self.options.max_batch:
                    client, queue = self._waiting.popitem(last=False)
                    ticket = queue.popleft()
                    if queue:
                        self._waiting[client] = queue
                    self._admitted -= 1
                    if not ticket.future.set_running_or_notify_cancel():
                        continue
                    if time.monotonic() > ticket.deadline:
                        ticket.future.set_exception(Expired("the deadline passed in the queue"))
                        continue
                    batch.append(ticket)
                if batch:
                    return batch

    def _answer(self, batch: list[Ticket]) -> None:
        began = time.monotonic()
        retriever = self.retriever
        results = retriever.retrieve([t.raw for t in batch], trace=any(t.trace for t in batch))
        index = retriever.index
        for ticket, result in zip(batch, results, strict=True):
            error = result.error and RequestError(**result.error)
            ads = result.ads
            ids = [ad.ad_id for ad in ads]
            stages = {"queue": (began - ticket.submitted) * 1e3}
            if result.trace is not None:
                stages |= result.trace.stages_ms
            ticket.future.set_result(
                Answer(
                    result.id, str(index.version), index,
                    index.find_ads(ids) if ids else np.empty(0, np.int64),
                    np.array([ad.sid for ad in ads], np.int64).reshape(len(ads), index.num_levels),
                    np.array([ad.score for ad in ads], np.float32),
                    result.funnel, stages, len(batch), error,
                    result.trace if ticket.trace else None,
                )
            )  # fmt: skip
