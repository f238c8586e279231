"""Batches that come alone, one after the other: the paper's Full latency."""

from __future__ import annotations

import time
from collections.abc import Sequence

from grace.serve import Engine

PACE_S = 0.03
"""Between two batches: in about that time GRACE gathers 16 users (section 5)."""


def batch_times(
    engine: Engine, requests: Sequence[dict], batches: int
) -> tuple[list[float], list[dict]]:
    """Return what each batch took, milliseconds, and its stages; the first ones warm up."""
    times_ms, stages = [], []
    size = engine.options.max_batch
    warmup = min(5, batches)
    for number in range(warmup + batches):
        first = number * size % len(requests)
        began = time.perf_counter()
        tickets = engine.submit_all(requests[first : first + size])
        answers = [ticket.future.result() for ticket in tickets]
        if number >= warmup:
            times_ms.append((time.perf_counter() - began) * 1e3)
            stages.append(answers[-1].stages_ms)
        time.sleep(max(began + PACE_S - time.perf_counter(), 0))
    return times_ms, stages
