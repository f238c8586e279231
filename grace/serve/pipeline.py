"""One index version's way from tickets to answers: input, compute and post, side by side.

The stages are nodes of a `grace.runtime` graph, each on a thread of its own, so that three batches
may be under way at once. On a GPU compute only launches; post sleeps until the SIDs are there.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import torch

from grace.errors import ConfigError, RequestError
from grace.retrieve import Retriever
from grace.retrieve.found import Found
from grace.retrieve.request import Request, readable_id
from grace.retrieve.result import Trace
from grace.retrieve.searching import Inputs, Searching, StageTimes
from grace.runtime import Executor, Frame, Graph, Node, TensorSpec, Timeline
from grace.serve.answer import Answer, write_json
from grace.serve.ticket import Expired, Ticket


class Owner(Protocol):
    """What a pipeline tells its engine, on its own threads."""

    def claim(self, ticket: Ticket) -> bool:
        """Whether somebody still waits for a ticket, who now waits until it is settled."""

    def settle(self, ticket: Ticket, outcome: Answer | Exception) -> None:
        """Give a claimed ticket its answer, or what ended it, unless it has one."""

    def searched(self, job: Job) -> None:
        """A batch leaves what searches to the next one, which may be formed, full or not."""

    def ended(self, job: Job, error: Exception | None) -> None:
        """A batch has left the pipeline, all its tickets settled."""


@dataclass(eq=False)
class Job:
    """A batch on its way.

    Attributes:
        tickets: those that are not turned away.
        taken: when it was formed, in the time of `time.monotonic`.
        size: how many tickets it began with.
        requests: of `tickets`, once input has read them.
        inputs: of `requests`, for as long as a device may read them.
        computing: when compute began, in the time of `time.perf_counter`.
        searching: once compute has launched the search.
        replayed: whether that is a CUDA graph's replay.
        funnels: of the answers.
        stages_ms: wall time of each stage.
    """

    tickets: list[Ticket]
    taken: float
    size: int = field(init=False)
    requests: list[Request] = field(default_factory=list)
    inputs: Inputs | None = None
    computing: float = 0.0
    searching: Searching | None = None
    replayed: bool = False
    funnels: list[dict] = field(default_factory=list)
    stages_ms: StageTimes = field(default_factory=StageTimes)

    def __post_init__(self):
        self.size = len(self.tickets)

    @property
    def traced(self) -> bool:
        """Whether anybody asked how the search goes."""
        return any(ticket.trace for ticket in self.tickets)


class Pipeline:
    """Answers batches from one version.

    Args:
        retriever: over the version; warmed here, so that the first batch need not wait.
        contexts: batches in flight.
        owner: whose tickets they are.
        timeline: where the stages' spans go, if anywhere.
    """

    def __init__(
        self, retriever: Retriever, contexts: int, owner: Owner, timeline: Timeline | None
    ):
        self.retriever, self._owner = retriever, owner
        self.version = str(retriever.index.version)
        most, device = retriever.batch_size, str(retriever.inputs_device)
        tensors = tuple(
            TensorSpec(name, tensor.dtype, (most, *tensor.shape[1:]))
            for name, tensor in retriever.inputs([]).tensors.items()
        )
        self._names = tuple(spec.name for spec in tensors)
        # Two tensors that only order the nodes; no feature's name has a space.
        read = TensorSpec("is read", torch.bool, (1,))
        searched = TensorSpec("is searched", torch.bool, (1,), device)
        graph = Graph((), (
            Node("input", self._input, outputs=(read, *tensors)),
            Node("compute", self._compute, (read.name, *self._names), (searched,), device),
            Node("post", self._post, (searched.name,)),
        ))  # fmt: skip
        retriever.warm()
        self._executor: Executor | None = Executor(graph, contexts, timeline)

    def start(self, job: Job) -> None:
        """Send a batch on its way, when a context is free."""
        self._executor.submit(job, job.size, done=self.end)

    def end(self, job: Job, error: Exception | None) -> None:
        """A batch is over; what is not settled yet is so by the error."""
        if error is not None:
            for ticket in job.tickets:
                self._settle(ticket, error)
        self._owner.ended(job, error)

    def close(self, timeout_s: float | None = None) -> bool:
        """End its threads after its last batch; whether that happened in time."""
        executor = self._executor
        if executor is None or not executor.close(timeout=timeout_s):
            return executor is None
        self._executor = None  # which holds this object: a version's memory must not wait for gc
        return True

    def _input(self, frame: Frame) -> None:
        """Read the requests, answer the wrong ones, turn features into tensors."""
        job: Job = frame.payload
        with job.stages_ms.stage("input"):
            self._read(job)
            if not job.requests:
                self._owner.searched(job)  # the device will have nothing of it
            job.inputs = self.retriever.inputs(job.requests)
            for name, tensor in job.inputs.tensors.items():
                frame.out(name, *tensor.shape).copy_(tensor)
            frame.out("is read", 1).fill_(True)

    def _read(self, job: Job) -> None:
        """Read the requests of the tickets that are still wanted; settle all others."""
        wanted = [ticket for ticket in job.tickets if not self._is_late(ticket)]
        job.tickets = []
        outcomes = self.retriever.read([ticket.raw for ticket in wanted])
        for ticket, outcome in zip(wanted, outcomes, strict=True):
            if isinstance(outcome, Request):
                job.tickets.append(ticket)
                job.requests.append(outcome)
            elif isinstance(outcome, RequestError):
                nothing = Found.nothing(self.retriever.index.num_levels, outcome)
                self._settle(ticket, self._answer(job, ticket, readable_id(ticket.raw), nothing))
            else:  # whatever it is, its neighbours go on
                self._settle(ticket, outcome)

    def _is_late(self, ticket: Ticket) -> bool:
        """Whether nobody waits for a ticket any more, who is told so."""
        if not ticket.future.cancelled() and time.monotonic() < ticket.deadline:
            return False
        self._settle(ticket, Expired("the deadline passed before the search"))
        return True

    def _compute(self, frame: Frame) -> None:
        """Launch the search of what is still wanted."""
        job: Job = frame.payload
        job.computing = time.perf_counter()
        with job.stages_ms.stage("compute"):
            rows = [row for row, ticket in enumerate(job.tickets) if self._is_wanted(ticket)]
            job.tickets = [job.tickets[row] for row in rows]
            job.requests = [job.requests[row] for row in rows]
            if rows:
                unknown_items = job.inputs.unknown_items
                job.inputs = Inputs({name: frame[name] for name in self._names}, unknown_items)
                if len(rows) < len(unknown_items):
                    job.inputs = job.inputs.take(rows)
                job.searching = self.retriever.launch(job.requests, job.inputs, job.traced)
                job.replayed = job.searching.done is not None
                if job.replayed:
                    # What follows in the frame's stream follows the search, post's wake-up too.
                    frame.stream.wait_event(job.searching.done)
            frame.out("is searched", 1).fill_(True)

    def _is_wanted(self, ticket: Ticket) -> bool:
        if not self._owner.claim(ticket):
            return False
        if time.monotonic() < ticket.deadline:
            return True
        self._owner.settle(ticket, Expired("the deadline passed before the search"))
        return False

    def _post(self, frame: Frame) -> None:
        """Expand the SIDs into ads, filter them, settle the tickets."""
        job: Job = frame.payload
        if job.searching is None:
            return
        with job.stages_ms.stage("compute"):
            beams = job.searching.wait()
        if job.replayed:
            # The search went on while nobody here waited for it.
            job.stages_ms["compute"] = (time.perf_counter() - job.computing) * 1e3
            self._owner.searched(job)  # the GPU has nothing to do, and is no core of this batch's
        with job.stages_ms.stage("post"):
            found, traces = self.retriever.find(job.requests, job.searching, beams, job.traced)
            answers = self._answers(job, found, traces)
        job.funnels = [one.funnel for one in found]
        for ticket, answer in zip(job.tickets, answers, strict=True):
            answer.stages_ms.update(job.stages_ms)  # post has a time only now
            self._owner.settle(ticket, answer)
        if not job.replayed:
            # Only now: where no full batch waits, the next one would only compete for the cores.
            self._owner.searched(job)

    def _answers(
        self, job: Job, found: list[Found], traces: Sequence[Trace | None]
    ) -> list[Answer]:
        """Return the answers, those as text that somebody wants so."""
        answers = [
            self._answer(job, ticket, request.id, one, trace if ticket.trace else None)
            for ticket, request, one, trace in zip(
                job.tickets, job.requests, found, traces, strict=True
            )
        ]
        wanted = [
            row
            for row, ticket in enumerate(job.tickets)
            if ticket.as_text and answers[row].error is None
        ]
        texts = write_json([answers[row] for row in wanted])
        for row, text in zip(wanted, texts, strict=True):
            answers[row] = replace(answers[row], text=text)
        return answers

    def _answer(
        self,
        job: Job,
        ticket: Ticket,
        request_id: str | int | None,
        found: Found,
        trace: Trace | None = None,
    ) -> Answer:
        stages_ms = {"queue": (job.taken - ticket.submitted) * 1e3, **job.stages_ms}
        return Answer(
            request_id, self.version, self.retriever.index, found.positions, found.sids,
            found.scores, found.funnel, stages_ms, job.size, found.error, trace,
        )  # fmt: skip

    def _settle(self, ticket: Ticket, outcome: Answer | Exception) -> None:
        if self._owner.claim(ticket):
            self._owner.settle(ticket, outcome)


def is_of_device(error: Exception) -> bool:
    """Whether an error says that the device may compute no more: no memory, or a lost context."""
    if isinstance(error, (torch.OutOfMemoryError, ConfigError)):
        return True  # a ConfigError of a batch: graphs had to be captured anew, without memory
    return isinstance(error, RuntimeError) and "CUDA" in str(error)
