"""Counts of a server in Prometheus' format; docs/serving.md has the table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
)
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from grace.serve import counters
from grace.serve.counters import EngineCounters
from grace.serve.engine import Engine
from grace.serve.health import why_not_ready

SECONDS = (
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10,
)  # fmt: skip
BATCH_SIZES = (1, 2, 4, 8, 12, 16, 24, 32)


class Metrics:
    """Counts of one engine and of the calls to it, in a registry of their own.

    Calls are counted here as they end, from any thread; what the engine counts is read from it
    when somebody asks, so that a request pays for it once.

    Args:
        engine: that answers.
    """

    def __init__(self, engine: Engine):
        disable_created_metrics()  # a line per series that nobody reads
        self.registry = registry = CollectorRegistry()
        calls = Counter(
            "grace_calls", "Calls by protocol, route and status", ["protocol", "route", "status"],
            registry=registry,
        )  # fmt: skip
        seconds = Histogram(
            "grace_call_seconds", "From the head of a call to its reply", ["protocol", "route"],
            buckets=SECONDS, registry=registry,
        )  # fmt: skip
        self._refusals = Counter(
            "grace_refusals", "Calls without an answer, by reason", ["reason"], registry=registry
        )
        self._deaths = Counter(
            "grace_worker_deaths", "HTTP workers that died and were started again",
            registry=registry,
        )  # fmt: skip
        # Looking a series up costs more than counting in it, and there are few.
        self._calls, self._seconds = cache(calls.labels), cache(seconds.labels)
        ProcessCollector(registry=registry)
        registry.register(_EngineMetrics(engine))  # type: ignore[arg-type]

    def count_call(self, protocol: str, route: str, status: str, seconds: float) -> None:
        """Count a call that is over; `route` is a pattern, never a path that a client made up."""
        self._calls(protocol, route, status).inc()
        self._seconds(protocol, route).observe(seconds)

    def count_refusal(self, reason: str) -> None:
        """Count a call that got no answer."""
        self._refusals.labels(reason).inc()

    def count_worker_death(self) -> None:
        """Count an HTTP worker that died."""
        self._deaths.inc()

    def render(self) -> tuple[bytes, str]:
        """Return the text that Prometheus reads, and its content type."""
        return generate_latest(self.registry), CONTENT_TYPE_LATEST


class _EngineMetrics:
    """What the engine says of itself, in Prometheus' form."""

    def __init__(self, engine: Engine):
        self._engine = engine

    def describe(self) -> list[Metric]:
        """Nothing in advance; without it the registry would ask the engine while it is made."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Yield everything."""
        yield from _counts(self._engine.counters)
        yield from _state(self._engine)


def _counts(counted: EngineCounters) -> Iterator[Metric]:
    yield _counter("grace_requests", "Requests by how they ended", "outcome", counted.requests)
    yield _histogram("grace_batch_size", "Requests in a batch", BATCH_SIZES, counted.batches)
    stages = HistogramMetricFamily(
        "grace_stage_seconds", "Each request's time in the queue, each batch's in its stages",
        labels=["stage"],
    )  # fmt: skip
    for stage, took in counted.stages.items():
        bounds = [f"{bound / 1e3:g}" for bound in counters.BOUNDS_MS] + ["+Inf"]
        stages.add_metric([stage], _cumulated(bounds, took.counts), took.sum_ms / 1e3)
    yield stages
    yield _counter("grace_funnel", "Sums over answers of what each stage left", "stage",
                   counted.funnel)  # fmt: skip
    yield _counter("grace_dropped_ads", "Ads that the last filter refused, by its first reason",
                   "reason", counted.dropped)  # fmt: skip
    yield _gauge("grace_eligibility_rate", "Share of expanded ads that the last filter kept",
                 counted.eligibility_rate)  # fmt: skip
    yield CounterMetricFamily("grace_index_swaps", "Changes of version between batches",
                              value=counted.swaps)  # fmt: skip
    yield CounterMetricFamily("grace_graph_replays", "Searches that were a CUDA graph's replay",
                              value=counted.graph_replays)  # fmt: skip


def _state(engine: Engine) -> Iterator[Metric]:
    status, index = engine.status(), engine.index
    yield _gauge("grace_ready", "Whether new requests are taken", why_not_ready(engine) is None)
    yield _gauge("grace_admitted_requests", "Requests waiting for a batch or in one",
                 status["admitted"])  # fmt: skip
    yield _gauge("grace_admitted_limit", "The most such requests; more are refused",
                 engine.options.max_admitted)  # fmt: skip
    version = GaugeMetricFamily("grace_index_info", "The version in use", labels=["version"])
    version.add_metric([str(status["version"])], 1)
    yield version
    yield _gauge("grace_index_ads", "Ads of that version", index.num_ads)
    yield _gauge("grace_index_sids", "SIDs of that version", index.num_sids)
    yield _gauge("grace_index_stuck", "Whether a newer version could not be opened",
                 status["failure"] is not None)  # fmt: skip


def _gauge(name: str, about: str, value: float) -> Metric:
    return GaugeMetricFamily(name, about, value=float(value))


def _counter(name: str, about: str, label: str, values: Mapping[str, int]) -> Metric:
    family = CounterMetricFamily(name, about, labels=[label])
    for key, value in values.items():
        family.add_metric([key], value)
    return family


def _histogram(name: str, about: str, bounds: tuple[int, ...], sizes: Mapping[int, int]) -> Metric:
    """Return a histogram of integers from how often each occurred."""
    counts = [
        sum(count for size, count in sizes.items() if low < size <= high)
        for low, high in zip((0, *bounds), (*bounds, float("inf")), strict=True)
    ]
    total = sum(size * count for size, count in sizes.items())
    buckets = _cumulated([*map(str, bounds), "+Inf"], counts)
    return HistogramMetricFamily(name, about, buckets=buckets, sum_value=total)


def _cumulated(bounds: list[str], counts: list[int] | tuple[int, ...]) -> list[tuple[str, float]]:
    buckets, total = [], 0
    for bound, count in zip(bounds, counts, strict=True):
        total += count
        buckets.append((bound, float(total)))
    return buckets
