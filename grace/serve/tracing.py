"""OpenTelemetry (extra `otel`): a span per call, a child per stage; imported where configured."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from grace.errors import ConfigError
from grace.serve.answer import Answer

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.export import SpanExporter


class Tracing:
    """Makes spans of calls that are over; a batch thread of the SDK sends them.

    A request's stages are its batch's, and the engine says how long each took, not when: after the
    time in the queue they are drawn one after the other.

    Args:
        exporter: where spans go.
        share: of calls that are traced if their caller does not say (`traceparent`).

    Raises:
        ConfigError: if the extra is not installed.
    """

    def __init__(self, exporter: SpanExporter, share: float = 1.0):
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._provider = TracerProvider(
            sampler=ParentBased(TraceIdRatioBased(share)),
            resource=Resource.create({"service.name": "grace"}),
            shutdown_on_exit=False,
        )
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("grace.serve")
        self._propagator = TraceContextTextMapPropagator()

    def record(
        self,
        name: str,
        get_header: Callable[[str], str | None],
        start_ns: int,
        end_ns: int,
        attributes: Mapping[str, str | int],
        answers: list[Answer],
        failed: bool,
    ) -> None:
        """Make the spans of one call.

        Args:
            name: of the call, such as `POST /v1/retrieve`.
            get_header: of the call; `traceparent` and `tracestate` are read.
            start_ns, end_ns: since 1970, of the call.
            attributes: of its span.
            answers: whose stages become children.
            failed: whether it is the server's fault that there is no answer.
        """
        from opentelemetry.trace import SpanKind, StatusCode, set_span_in_context

        carrier = {key: get_header(key) or "" for key in ("traceparent", "tracestate")}
        parent = self._propagator.extract(carrier)
        span = self._tracer.start_span(
            name, parent, SpanKind.SERVER, dict(attributes), start_time=start_ns
        )
        if span.is_recording():
            if failed:
                span.set_status(StatusCode.ERROR)
            inside = set_span_in_context(span)
            for answer in answers:
                begin = start_ns
                for stage, milliseconds in answer.stages_ms.items():
                    child = self._tracer.start_span(stage, inside, start_time=begin)
                    begin += int(milliseconds * 1e6)
                    child.end(begin)
        span.end(end_ns)

    def close(self) -> None:
        """Send what waits."""
        self._provider.shutdown()


def start_tracing(endpoint: str, share: float) -> Tracing | None:
    """Return tracing to an OTLP endpoint over HTTP, or None if none is named.

    Raises:
        ConfigError: if the extra is not installed, naming what to install.
    """
    if not endpoint:
        return None
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

        return Tracing(OTLPSpanExporter(endpoint=endpoint), share)
    except ImportError:
        raise ConfigError(
            "telemetry.otlp_endpoint: traces need the extra: pip install 'grace[otel]'"
        ) from None
