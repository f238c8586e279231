"""CUDA streams and captures that keep clear of each other, whatever other threads do."""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections import Counter
from collections.abc import Iterator

import torch

POOL = 32  # streams of a device, which torch deals out again and again

device_lock = threading.RLock()
"""Held while a graph is captured or kernels are measured. Both wait for the whole device, and that
spoils a capture which is under way in another thread."""

_held: Counter[tuple[int, int]] = Counter()
_held_lock = threading.Lock()


def own_stream(owner: object, device: torch.device) -> torch.cuda.Stream:
    """Return a stream that nobody else got here, until its owner is no more.

    What one thread enqueues on a stream that another one captures would become part of its graph.
    With more than `POOL` streams held at once, some are shared all the same.

    Args:
        owner: whoever uses it; an object of a Python class. (Streams themselves are no keys of weak
            references: torch frees them without telling.)
        device: a CUDA device.
    """
    with _held_lock:
        for _ in range(POOL):
            stream = torch.cuda.Stream(device)
            key = stream.device_index, stream.cuda_stream
            if not _held[key]:
                break
        _held[key] += 1
    weakref.finalize(owner, _held.subtract, [key])
    return stream


class Holder:
    """An owner of streams for a while."""


@contextlib.contextmanager
def capturing(
    graph: torch.cuda.CUDAGraph, stream: torch.cuda.Stream, pool: tuple[int, int] | None = None
) -> Iterator[None]:
    """Capture what the block enqueues; no other capture of this process is under way.

    Args:
        graph: to be filled.
        stream: of `own_stream`; the current one inside the block.
        pool: memory that graphs share which never run at the same time.
    """
    captured = torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local")
    with device_lock, captured:
        yield
