"""How much of the time the GPU computes, by its own trace."""

from __future__ import annotations

import time
from collections.abc import Iterable

import torch

SECONDS = 0.4


def kernel_share(seconds: float = SECONDS) -> float:
    """Trace the GPU for a while, and return the share of it in which a kernel ran, 0 to 1.

    Copies do not count. Whatever launches goes on meanwhile, on other threads.
    """
    activities = [torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profiler:
        time.sleep(seconds)
    ran = [
        (event.time_range.start, event.time_range.end)
        for event in profiler.events()
        if event.device_type == torch.autograd.DeviceType.CUDA
        and not event.is_user_annotation
        and not event.name.startswith(("Memcpy", "Memset"))
    ]
    return covered(ran)


def covered(spans: Iterable[tuple[float, float]]) -> float:
    """Return the share of the time from the first begin to the last end that lies in a span."""
    spans = sorted(spans)
    if not spans:
        return 0.0
    inside, (first, reached) = 0.0, spans[0]
    begin = first
    for start, end in spans[1:]:
        if start > reached:
            inside += reached - begin
            begin = start
        reached = max(reached, end)
    return (inside + reached - begin) / max(reached - first, 1e-9)
