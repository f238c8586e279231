"""What went wrong with a call → one status, the same on both transports."""

from __future__ import annotations

import logging
import uuid
from dataclasses import dataclass

from grace.errors import GraceError, RequestError
from grace.serve import Draining, Expired, Overloaded
from grace.serve.kserve.codec import InvalidInput

_log = logging.getLogger(__name__)


class NotFound(GraceError):
    """There is no such model, or it is at another version."""


class Unauthenticated(GraceError):
    """The call carries no token that is known."""


class TooLarge(GraceError):
    """The body is larger than the server takes."""


class Unavailable(GraceError):
    """Not now."""


@dataclass(frozen=True)
class Failure:
    """A failed call as the client sees it.

    Attributes:
        http: status code.
        grpc: name of the status code.
        message: for the client; nothing of the server's inside.
        retry_after_s: when to come back, where that is known.
    """

    http: int
    grpc: str
    message: str
    retry_after_s: float | None = None


_STATUSES: dict[type[Exception], tuple[int, str]] = {
    InvalidInput: (400, "INVALID_ARGUMENT"),
    RequestError: (400, "INVALID_ARGUMENT"),
    Unauthenticated: (401, "UNAUTHENTICATED"),
    NotFound: (404, "NOT_FOUND"),
    TooLarge: (413, "RESOURCE_EXHAUSTED"),
    Overloaded: (429, "RESOURCE_EXHAUSTED"),
    Draining: (503, "UNAVAILABLE"),
    Unavailable: (503, "UNAVAILABLE"),
    Expired: (504, "DEADLINE_EXCEEDED"),
}


def describe_failure(error: Exception) -> Failure:
    """Return how to tell a client of an error; one of ours is logged under an id that it gets."""
    known = _STATUSES.get(type(error))
    if known is not None:
        return Failure(*known, str(error), getattr(error, "retry_after_s", None))
    incident = uuid.uuid4().hex
    _log.error("incident %s", incident, exc_info=error)
    return Failure(500, "INTERNAL", f"internal error, incident {incident}")
