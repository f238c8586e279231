"""Requests in from any thread, batches through a pipeline, answers out."""

from __future__ import annotations

import logging
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from typing import Any

from grace.decode import BeamPlan
from grace.errors import GraceError
from grace.index import Index
from grace.index.reader import IndexReader
from grace.retrieve import Retriever
from grace.retrieve.request import RequestText
from grace.runtime import Batcher, Cancelled, Closed, Full, Timeline
from grace.runtime import Expired as WaitedTooLong
from grace.serve.answer import Answer
from grace.serve.counters import Counts, EngineCounters
from grace.serve.options import EngineOptions
from grace.serve.pipeline import Job, Pipeline, is_of_device
from grace.serve.ticket import Draining, Expired, Overloaded, Ticket

__all__ = ["Draining", "Engine", "EngineOptions", "Expired", "Overloaded", "Ticket"]

AHEAD = 2
"""Batches that the device has at most: one that it works on, one that is ready when that ends. More
would wait there, where no newer version, deadline or cancellation reaches them."""

_log = logging.getLogger(__name__)


class Engine:
    """Answers requests of many clients from the newest version of an index.

    A batch is formed when the device has nothing to do, or when a full one waits and a context is
    free: at saturation batches follow each other without a gap, below it nobody waits for company.
    A model in Python is called by one thread at a time.

    Args:
        index: a directory, which is followed, or an opened `Index`.
        model: as `Retriever` takes it.
        plan: widths of the search.
        options: of batching and admission.
        timeline: a file that `drain` writes a Chrome trace of the stages to.
        retriever: all other options of `Retriever`.

    Attributes:
        model: as it came, or as it was read from its directory.

    Raises:
        ConfigError, IndexFormatError, ModelError: as `Retriever` and `Index.open` raise them.
    """

    def __init__(
        self,
        index: Index | str | os.PathLike,
        model: Any,
        plan: BeamPlan | None = None,
        options: EngineOptions | None = None,
        timeline: str | os.PathLike | None = None,
        **retriever: Any,
    ):
        self.options = options = options or EngineOptions()
        if isinstance(model, (str, os.PathLike)):
            from grace.model.folder import open_model

            model = open_model(model)
        self.model = model
        self._timeline_path = timeline
        self._timeline = None if timeline is None else Timeline()
        self._lock = threading.RLock()  # of the sets and the list
        self._open: set[Ticket] = set()
        self._in_flight: set[Job] = set()
        self._searching: set[Job] = set()
        self._searched = threading.Condition(self._lock)
        self._pipelines: list[Pipeline] = []
        self._failed: str | None = None
        self._batch_s = 0.0  # how long a batch took lately
        self._counts = Counts()
        self._draining = False
        self._choosing = threading.RLock()  # held from a pipeline's choice to its batch's start
        self._batcher: Batcher[Ticket] = Batcher(options.max_admitted, self._dropped)

        def prepare(version: Index) -> Pipeline:
            over = Retriever(version, model, plan, batch_size=options.max_batch, **retriever)
            pipeline = Pipeline(over, options.contexts, self, self._timeline)
            with self._lock:
                self._pipelines.append(pipeline)
            return pipeline

        self.reader = None
        if not isinstance(index, Index):
            self.reader = IndexReader(index, prepare, self._retire)
        self._fixed = prepare(index) if isinstance(index, Index) else None
        self._current = self._newest()
        self._thread = threading.Thread(target=self._feed, name="grace-engine", daemon=True)
        self._thread.start()

    @property
    def index(self) -> Index:
        """The version that the next batch will be answered from."""
        return self.retriever.index

    @property
    def retriever(self) -> Retriever:
        """Over that version."""
        return self._newest().retriever

    @property
    def counters(self) -> EngineCounters:
        """What has been counted so far."""
        return self._counts.snapshot(len(self._open))

    def submit(
        self,
        raw: dict | RequestText,
        client: str = "",
        timeout_ms: float | None = None,
        trace: bool = False,
        as_text: bool = False,
    ) -> Ticket:
        """Admit a request; see `submit_all`."""
        return self.submit_all([raw], client, timeout_ms, trace, as_text)[0]

    def submit_all(
        self,
        raws: Sequence[dict | RequestText],
        client: str = "",
        timeout_ms: float | None = None,
        trace: bool = False,
        as_text: bool = False,
    ) -> list[Ticket]:
        """Admit requests, all of them or none; never blocks.

        As many as a batch holds are one batch where nothing else waits.

        Args:
            raws: each as `Retriever.retrieve` takes it, or its text; what is wrong with it is in
                its answer.
            client: whose they are; clients take turns.
            timeout_ms: from now to their deadline.
            trace: whether answers tell how the search went.
            as_text: whether answers come with their text, which is cheapest for a batch at once.

        Raises:
            Overloaded: if the engine could not hold all.
            Draining: if it is going down.
            ValueError: if the timeout is not a number.
        """
        now = time.monotonic()
        timeout = self.options.timeout_ms if timeout_ms is None else timeout_ms
        deadline = now + timeout / 1e3
        tickets = [Ticket(Future(), raw, client, deadline, now, trace, as_text) for raw in raws]
        for ticket in tickets:
            ticket.future.add_done_callback(self._withdrawing(ticket))
        try:
            self._admit(tickets, client, deadline)
        except Closed:
            self._counts.note_outcome("draining", len(tickets))
            raise Draining("the server is going down") from None
        except Full:
            self._counts.note_outcome("overloaded", len(tickets))
            raise self._overloaded() from None
        # Where none may form, whoever makes room for one wakes the batcher.
        if len(self._batcher) >= self.options.max_batch and self._may_form():
            self._batcher.wake()
        return tickets

    def _withdrawing(self, ticket: Ticket) -> Callable[[Future], None]:
        waiting = weakref.ref(ticket)  # a future that held its ticket would be a circle

        def gone(future: Future) -> None:
            if future.cancelled() and (withdrawn := waiting()) is not None:
                self._batcher.cancel(withdrawn)

        return gone

    def drain(self, timeout_s: float = 30.0) -> bool:
        """Take no more requests, answer those admitted, stop; whether all were answered in time.

        Those that still wait when the time is over raise `Draining`.
        """
        end = time.monotonic() + timeout_s
        self._draining = True
        self._batcher.close()
        self._thread.join(timeout_s)
        self._batcher.close(drain=False)
        with self._lock:
            pipelines, self._pipelines = self._pipelines, []
        ended = [pipeline.close(max(end - time.monotonic(), 0.0)) for pipeline in pipelines]
        _close_later(pipeline for pipeline, has in zip(pipelines, ended, strict=True) if not has)
        if self._timeline is not None:
            self._timeline.write(self._timeline_path)
        return all(ended) and not self._open

    def status(self) -> dict:
        """Return `{"version", "admitted", "draining", "failure", "failed"}`; never fails.

        `failure` says why the version that the directory names is not the one held; `failed` why
        the device can compute no more, as far as is known: the engine is not ready then.
        """
        try:
            version = self.index.version
        except (GraceError, OSError):  # the reader has noted why
            version = self.reader.held.version
        failure = None if self.reader is None else self.reader.failure
        return {
            "version": version,
            "admitted": len(self._open),
            "draining": self._draining,
            "failure": None if failure is None else str(failure),
            "failed": self._failed,
        }

    def _admit(self, tickets: Sequence[Ticket], client: str, deadline: float) -> None:
        with self._lock:
            # Places that batches hold are not the batcher's to give.
            elsewhere = len(self._open) - len(self._batcher)
            self._batcher.capacity = self.options.max_admitted - elsewhere
            self._open.update(tickets)  # first: one may be dropped as soon as it waits
            try:
                self._batcher.admit_all(tickets, client, deadline)
            except BaseException:
                self._open.difference_update(tickets)
                raise

    # ---- forming batches, on the engine's own thread ------------------------------------------

    def _feed(self) -> None:
        wait_s = self.options.max_wait_ms / 1e3
        while tickets := self._batcher.take(self.options.max_batch, wait_s, self._may_form):
            self._start(Job(tickets, time.monotonic()))
            del tickets  # while nobody asks, nothing here holds a version that is gone

    def _start(self, job: Job) -> None:
        """Send a batch on its way through the newest version's pipeline."""
        with self._lock:
            self._in_flight.add(job)
        try:
            with self._choosing:
                self._begin(job, self._newest())
        except Closed:
            self._call_off(job, Draining("the server went down before the batch began"), None)
        except Exception as error:  # such as a damaged log of paused ads
            self._call_off(job, error, error)

    def _call_off(self, job: Job, why: Exception, error: Exception | None) -> None:
        for ticket in job.tickets:
            if self.claim(ticket):
                self.settle(ticket, why)
        self.ended(job, error)

    def _begin(self, job: Job, newest: Pipeline) -> None:
        with self._lock:
            if newest is not self._current:
                # A model is called by one thread at a time, over two versions as well.
                self._searched.wait_for(lambda: not self._searching)
                self._current = newest
            self._searching.add(job)
        waits_ms = [(job.taken - ticket.submitted) * 1e3 for ticket in job.tickets]
        self._counts.note_batch(job.size, newest.version, waits_ms)
        newest.start(job)

    def _newest(self) -> Pipeline:
        return self._fixed if self.reader is None else self.reader.prepared

    def _may_form(self) -> bool:
        """Whether a context is free, and the device idle, or one batch ahead and another full."""
        room = len(self._in_flight) < self.options.contexts and len(self._searching) < AHEAD
        return room and (not self._searching or len(self._batcher) >= self.options.max_batch)

    def _retire(self, pipeline: Pipeline) -> None:
        """End a pipeline that the reader keeps no more, after its last batch."""
        with self._choosing, self._lock:
            if pipeline is self._current:
                self._current = None
            if pipeline not in self._pipelines:  # `drain` has it
                return
            self._pipelines.remove(pipeline)
        pipeline.close()

    # ---- what pipelines and the batcher tell ---------------------------------------------------

    def claim(self, ticket: Ticket) -> bool:
        """See `Owner`."""
        if ticket not in self._open:
            return False
        if ticket.future.running() or ticket.future.set_running_or_notify_cancel():
            return True
        self._leave(ticket, "cancelled")
        return False

    def settle(self, ticket: Ticket, outcome: Answer | Exception) -> None:
        """See `Owner`."""
        if isinstance(outcome, Answer):
            if self._leave(ticket, "ok" if outcome.error is None else "invalid"):
                ticket.future.set_result(outcome)
        elif self._leave(ticket, _NAMES.get(type(outcome), "failed")):
            ticket.future.set_exception(outcome)

    def searched(self, job: Job) -> None:
        """See `Owner`."""
        if job.searching is not None:
            self._failed = None
        with self._lock:
            self._searching.discard(job)
            self._searched.notify_all()
        self._batcher.wake()

    def ended(self, job: Job, error: Exception | None) -> None:
        """See `Owner`."""
        passed = time.monotonic() - job.taken
        self._batch_s = passed if self._batch_s == 0 else 0.8 * self._batch_s + 0.2 * passed
        if error is not None:
            _log.error("a batch failed", exc_info=error)
            if is_of_device(error):
                self._failed = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
        self._counts.note_ended(job.stages_ms, job.replayed, job.funnels)
        with self._lock:
            self._searching.discard(job)
            self._in_flight.discard(job)
            self._searched.notify_all()
        self._batcher.wake()

    def _leave(self, ticket: Ticket, outcome: str) -> bool:
        """Note how a request ended; whether it had not ended before."""
        with self._lock:
            if ticket not in self._open:
                return False
            self._open.remove(ticket)
        self._counts.note_outcome(outcome)
        return True

    def _dropped(self, ticket: Ticket, reason: GraceError) -> None:
        if isinstance(reason, Cancelled):
            self._leave(ticket, "cancelled")
        elif self.claim(ticket):
            if isinstance(reason, WaitedTooLong):
                self.settle(ticket, Expired("the deadline passed in the queue"))
            elif isinstance(reason, Closed):
                self.settle(ticket, Draining("the server went down before the request's turn"))
            else:  # put out by a client that has fewer waiting
                self.settle(ticket, self._overloaded())

    def _overloaded(self) -> Overloaded:
        """As long as the batches that wait will take, by what the last ones took."""
        batches = 1 + len(self._batcher) / self.options.max_batch
        after_s = min(max(self._batch_s * batches, 0.01), 10.0)
        held = self.options.max_admitted
        return Overloaded(f"the engine holds {held} requests, the most allowed", after_s)


_NAMES = {Expired: "expired", Draining: "draining", Overloaded: "overloaded"}


def _close_later(pipelines: Iterable[Pipeline]) -> None:
    """Let each end with its last batch, which nobody here waits for."""
    for pipeline in pipelines:
        threading.Thread(target=pipeline.close, name="grace-close", daemon=True).start()
