"""Batches that come alone, one after the other: the paper's Full latency."""

from __future__ import annotations

import time
from collections.abc import Sequence

from grace.serve import Engine

PACE_S = 0.03
"""Between two batches: in about that time GRACE gathers 16 users (section 5)."""


def warm(engine: Engine, requests: Sequence[dict]) -> None:
    """Answer batches of every size, so that nothing is captured or compiled later."""
    for size in range(1, engine.options.max_batch + 1):
        for ticket in engine.submit_all(requests[:size], as_text=True):
            ticket.future.result()


def batch_times(
    engine: Engine, requests: Sequence[dict], batches: int, as_text: bool
) -> tuple[list[float], list[dict]]:
    """Return what each batch took, milliseconds, and its stages; `as_text` as of `submit_all`."""
    times_ms, stages = [], []
    size = engine.options.max_batch
    for number in range(batches):
        first = number * size % len(requests)
        began = time.perf_counter()
        tickets = engine.submit_all(requests[first : first + size], as_text=as_text)
        answers = [ticket.future.result() for ticket in tickets]
        times_ms.append((time.perf_counter() - began) * 1e3)
        stages.append(answers[-1].stages_ms)
        time.sleep(max(began + PACE_S - time.perf_counter(), 0))
    return times_ms, stages
