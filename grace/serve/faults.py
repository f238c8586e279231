"""What went wrong, as a client is told it: a status, a field, a sentence; nothing internal."""

from __future__ import annotations

import math

import orjson
from starlette.exceptions import HTTPException
from starlette.responses import Response

from grace.errors import RequestError
from grace.serve.engine import Draining, Expired, Overloaded


class Fault(Exception):
    """An answer other than 200.

    Attributes:
        status: of HTTP.
        field: what it is about: a dotted key of the request, a header, `body`, `server`.
        message: what was expected and what came.
        reason: the label that metrics count it under.
        headers: to send along.
    """

    def __init__(
        self,
        status: int,
        field: str,
        message: str,
        reason: str,
        headers: dict[str, str] | None = None,
    ):
        super().__init__(message)
        self.status, self.field, self.message = status, field, message
        self.reason, self.headers = reason, headers


def fault_of(error: Exception) -> Fault:
    """Return what a client may know of an error; of an unexpected one nothing but that it was."""
    match error:
        case Fault():
            return error
        case RequestError():
            return Fault(400, error.field, error.message, "invalid")
        case Overloaded():
            seconds = str(max(1, math.ceil(error.retry_after_s)))
            return Fault(429, "server", str(error), "overloaded", {"retry-after": seconds})
        case Draining():
            return Fault(503, "server", str(error), "draining", {"retry-after": "1"})
        case Expired():
            return Fault(504, "server", str(error), "expired")
        case HTTPException():
            return _of_routing(error)
    return Fault(500, "server", "an unexpected fault; the log has it under this id", "internal")


def _of_routing(error: HTTPException) -> Fault:
    headers = dict(error.headers or {})
    if error.status_code == 405:
        message = f"expected {headers.get('Allow', 'another method')}"
        return Fault(405, "method", message, "method", headers)
    if error.status_code == 404:
        return Fault(404, "path", "there is no such page; /docs lists them", "path")
    return Fault(error.status_code, "request", str(error.detail), "invalid", headers)


def fault_response(fault: Fault, request_id: str, path: str) -> Response:
    """Return `{"error": {"field", "message", "request_id"}}`; below `/v2` the error is a text."""
    error: object = {"field": fault.field, "message": fault.message, "request_id": request_id}
    if path == "/v2" or path.startswith("/v2/"):
        error = f"{fault.field}: {fault.message}"
    return json_response({"error": error}, fault.status, fault.headers)


def json_response(
    content: object, status: int = 200, headers: dict[str, str] | None = None
) -> Response:
    """Return an object as JSON."""
    return Response(orjson.dumps(content), status, headers, "application/json")
