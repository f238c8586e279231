"""One request on its way through an engine, and how it may be turned away."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass

from grace.errors import GraceError
from grace.retrieve.request import RequestText
from grace.serve.answer import Answer


class Overloaded(GraceError):
    """The queue is full; `retry_after_s` says when to come back."""

    def __init__(self, message: str, retry_after_s: float):
        super().__init__(message)
        self.retry_after_s = retry_after_s


class Draining(GraceError):
    """The server is going down and takes no new requests."""


LATE = "the deadline passed before there was an answer"


class Expired(GraceError):
    """The request's deadline passed before its batch began; nothing was computed for it."""


@dataclass(frozen=True, eq=False)
class Ticket:
    """One admitted request.

    Attributes:
        future: gives an `Answer`, or raises `Expired`, `Draining`, `Overloaded` (another client's
            turn came first) or what went wrong.
        raw: the request as it came, or its text.
        client: whose it is.
        deadline, submitted: in the time of `time.monotonic`.
        trace: whether the answer tells how the search went.
        as_text: whether the answer comes with its text, written beside those of its batch.
    """

    future: Future[Answer]
    raw: dict | RequestText
    client: str
    deadline: float
    submitted: float
    trace: bool = False
    as_text: bool = False

    def cancel(self) -> None:
        """Forget the request: the client is gone. One whose search has begun runs to its end."""
        self.future.cancel()
