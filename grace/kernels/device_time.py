"""How long a call keeps a GPU busy, as it would inside a CUDA graph."""

from __future__ import annotations

import functools
import statistics
from collections.abc import Callable

import torch

from grace.kernels.capture import Holder, own_stream

CALLS, REPLAYS = 8, 7
FLUSH_BYTES = 2**27  # more than any cache holds


def device_ms(call: Callable[[], object], device: torch.device) -> float:
    """Return the milliseconds of one call, launches from Python not counted.

    Its inputs are not in the cache: between two calls something larger is written, whose own time
    is taken off. The call must have run before, so that nothing is compiled or tuned any more, and
    must be fit for a capture. `device_lock` is held, since no two captures may meet.
    """
    scratch = torch.empty(FLUSH_BYTES, dtype=torch.uint8, device=device)

    def both() -> None:
        scratch.zero_()
        call()

    return max(_replay_ms(both, device) - _flush_ms(device), 0.0) / CALLS


@functools.cache
def _flush_ms(device: torch.device) -> float:
    scratch = torch.empty(FLUSH_BYTES, dtype=torch.uint8, device=device)
    return _replay_ms(scratch.zero_, device)


def _replay_ms(call: Callable[[], object], device: torch.device) -> float:
    """Return the median milliseconds of a graph of `CALLS` calls."""
    holder, graph = Holder(), torch.cuda.CUDAGraph()
    stream = own_stream(holder, device)
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        graph.capture_begin(capture_error_mode="thread_local")
        try:
            for _ in range(CALLS):
                call()
        finally:
            graph.capture_end()
        graph.replay()
        events = [
            (torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True))
            for _ in range(REPLAYS)
        ]
        for start, end in events:
            start.record()
            graph.replay()
            end.record()
        stream.synchronize()
    return statistics.median(start.elapsed_time(end) for start, end in events)
