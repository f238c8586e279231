"""Counts of a server in Prometheus' format; docs/serving.md has the table."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
)
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from grace.serve.answer import Answer
from grace.serve.engine import Engine
from grace.serve.health import why_not_ready

SECONDS = (
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10,
)  # fmt: skip
FUNNEL = (
    "generated_sids", "catalog_sids", "eligible_sids", "expanded_ads", "eligible_ads",
    "returned_ads", "unknown_items",
)  # fmt: skip


class Metrics:
    """Counts of one engine, in a registry of their own; any thread may add to them.

    Args:
        engine: asked for its state whenever somebody reads the metrics.
    """

    def __init__(self, engine: Engine):
        disable_created_metrics()  # a line per series that nobody reads
        self.registry = registry = CollectorRegistry()
        self._calls = Counter(
            "grace_calls", "Calls by protocol, route and status", ["protocol", "route", "status"],
            registry=registry,
        )  # fmt: skip
        self._seconds = Histogram(
            "grace_call_seconds", "From the head of a call to its reply", ["protocol", "route"],
            buckets=SECONDS, registry=registry,
        )  # fmt: skip
        self._refusals = Counter(
            "grace_refusals", "Calls without an answer, by reason", ["reason"], registry=registry
        )
        self._requests = Counter(
            "grace_requests", "Requests that the engine answered, by outcome", ["outcome"],
            registry=registry,
        )  # fmt: skip
        self._stages = Histogram(
            "grace_stage_seconds", "Each stage of a request's batch, and its time in the queue",
            ["stage"], buckets=SECONDS, registry=registry,
        )  # fmt: skip
        self._batch = Histogram(
            "grace_batch_size", "Requests in the batch of an answered request",
            buckets=(1, 2, 4, 8, 12, 16, 24, 32), registry=registry,
        )  # fmt: skip
        self._funnel = Counter(
            "grace_funnel", "Sums over answers of what is left after each stage", ["stage"],
            registry=registry,
        )  # fmt: skip
        self._dropped = Counter(
            "grace_dropped_ads", "Ads that the last filter refused, by its first reason",
            ["reason"], registry=registry,
        )  # fmt: skip
        self._rate = Histogram(
            "grace_eligible_sid_rate", "Share of a request's generated SIDs with an eligible ad",
            buckets=(0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99, 1),
            registry=registry,
        )  # fmt: skip
        # Looking a series up costs more than counting in it, and there are few.
        self._calls_of, self._seconds_of = cache(self._calls.labels), cache(self._seconds.labels)
        self._funnel_of, self._stage_of = cache(self._funnel.labels), cache(self._stages.labels)
        self._requests_of = cache(self._requests.labels)
        self._dropped_of = cache(self._dropped.labels)
        ProcessCollector(registry=registry)
        registry.register(_EngineState(engine))  # type: ignore[arg-type]

    def count_call(self, protocol: str, route: str, status: str, seconds: float) -> None:
        """Count a call that is over; `route` is a pattern, never a path that a client made up."""
        self._calls_of(protocol, route, status).inc()
        self._seconds_of(protocol, route).observe(seconds)

    def count_refusal(self, reason: str) -> None:
        """Count a call that got no answer."""
        self._refusals.labels(reason).inc()

    def count_answer(self, answer: Answer) -> None:
        """Count what the engine gave back for one request."""
        if answer.error is not None:
            self._requests_of("invalid").inc()
            return
        self._requests_of("answered").inc()
        self._batch.observe(answer.batch_size)
        for stage, milliseconds in answer.stages_ms.items():
            self._stage_of(stage).observe(milliseconds / 1e3)
        funnel = answer.funnel
        for stage in FUNNEL:
            self._funnel_of(stage).inc(funnel[stage])
        for reason, count in funnel["dropped"].items():
            if count:
                self._dropped_of(reason).inc(count)
        if funnel["generated_sids"]:
            self._rate.observe(funnel["eligible_sids"] / funnel["generated_sids"])

    def render(self) -> tuple[bytes, str]:
        """Return the text that Prometheus reads, and its content type."""
        return generate_latest(self.registry), CONTENT_TYPE_LATEST


class _EngineState:
    """What only the engine knows, at the moment of reading."""

    def __init__(self, engine: Engine):
        self._engine = engine

    def describe(self) -> list[Metric]:
        """Nothing in advance; without it the registry would ask the engine while it is made."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Yield gauges."""
        status, index = self._engine.status(), self._engine.index
        yield _gauge("grace_ready", "Whether new requests are taken",
                     why_not_ready(self._engine) is None)  # fmt: skip
        yield _gauge("grace_admitted_requests", "Requests waiting for a batch or in one",
                     status["admitted"])  # fmt: skip
        yield _gauge("grace_admitted_limit", "The most such requests; more are refused",
                     self._engine.options.max_admitted)  # fmt: skip
        version = GaugeMetricFamily("grace_index_info", "The version in use", labels=["version"])
        version.add_metric([str(status["version"])], 1)
        yield version
        yield _gauge("grace_index_ads", "Ads of that version", index.num_ads)
        yield _gauge("grace_index_sids", "SIDs of that version", index.num_sids)
        yield _gauge("grace_index_stuck", "Whether a newer version could not be opened",
                     status["failure"] is not None)  # fmt: skip


def _gauge(name: str, about: str, value: Any) -> Metric:
    return GaugeMetricFamily(name, about, value=float(value))
