"""One call of a client, whatever the protocol: who, since when, what came of it; told to metrics,
logs and traces once it is over."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from grace.serve.answer import Answer
from grace.serve.config import TelemetryConfig
from grace.serve.tracing import Tracing

_log = logging.getLogger("grace.serve.access")

CLIENT_GONE = 499  # what logs and metrics call a call whose client did not wait


@dataclass(slots=True)
class Call:
    """A call under way; handlers add to it.

    Attributes:
        protocol: `http` or `grpc`.
        request_id: the caller's, or made here; in the reply, the log and the trace.
        client: whose turn in the queue it takes.
        get_header: headers or metadata by lower-case name.
        name: method and route, such as `POST /v1/retrieve`.
        answers: what the engine gave back, in order.
        reason: why there is no answer, as metrics count it; empty if there is one.
        start: seconds of `time.perf_counter`.
        start_ns: nanoseconds since 1970.
    """

    protocol: str
    request_id: str
    client: str
    get_header: Callable[[str], str | None]
    name: str
    answers: list[Answer] = field(default_factory=list)
    reason: str = ""
    start: float = field(default_factory=time.perf_counter)
    start_ns: int = field(default_factory=time.time_ns)


class Counting(Protocol):
    """What counts calls: `Metrics`, or what tells them of calls in another process."""

    def count_call(self, protocol: str, route: str, status: str, seconds: float) -> None:
        """See `Metrics`."""

    def count_refusal(self, reason: str) -> None:
        """See `Metrics`."""


class Observer:
    """Tells of calls that are over.

    Args:
        telemetry: how much is told.
        metrics: counts.
        tracing: None makes no spans.
    """

    def __init__(self, telemetry: TelemetryConfig, metrics: Counting, tracing: Tracing | None):
        self._share, self.metrics, self._tracing = telemetry.access_log, metrics, tracing

    def finish(self, call: Call, status: int | str, failed: bool = False) -> None:
        """Count, log and trace a call.

        Args:
            call: that is over.
            status: HTTP's number, or the name of gRPC's code.
            failed: whether the server is broken; then there is a log line in any case.
        """
        seconds = time.perf_counter() - call.start
        self.metrics.count_call(call.protocol, call.name, str(status), seconds)
        if call.reason:
            self.metrics.count_refusal(call.reason)
        if failed or self._share >= 1 or random.random() < self._share:
            self._write_line(call, status, seconds, failed)
        if self._tracing is not None:
            self._tracing.record(
                call.name, call.get_header, call.start_ns, call.start_ns + int(seconds * 1e9),
                {"grace.request_id": call.request_id, "grace.client": call.client,
                 "grace.status": str(status)},
                call.answers, failed,
            )  # fmt: skip

    def _write_line(self, call: Call, status: int | str, seconds: float, failed: bool) -> None:
        level = logging.WARNING if failed else logging.INFO
        if not _log.isEnabledFor(level):
            return
        fields: dict = {
            "request_id": call.request_id,
            "client": call.client,
            "protocol": call.protocol,
            "status": status,
            "ms": round(seconds * 1e3, 3),
        }
        if call.reason:
            fields["reason"] = call.reason
        if call.answers:
            last = call.answers[-1]
            fields["requests"] = len(call.answers)
            fields["version"] = last.version
            fields["batch_size"] = last.batch_size
            fields["stages_ms"] = {name: round(ms, 3) for name, ms in last.stages_ms.items()}
        _log.log(level, call.name, extra={"fields": fields})
