"""A GPU made of threads: streams run what is enqueued on them later, in order, side by side.

It stands in for `torch.cuda` in `grace.runtime`, so the order of launches, copies and waits can be
tested without a device. Kernels of a test are functions given to `enqueue`.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable

import torch

from grace.runtime.context import Context


class Moment:
    """One record of an event."""

    def __init__(self):
        self.passed = threading.Event()
        self.at = 0.0
        self.error: Exception | None = None


class Stream:
    def __init__(self, device=None, priority=0):
        self.priority = priority
        self.error: Exception | None = None
        self._work: queue.SimpleQueue = queue.SimpleQueue()
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self):
        while True:
            work, moment = self._work.get()
            try:
                work()
            except Exception as error:  # as on a GPU, seen by whoever waits
                self.error = error
            moment.at, moment.error = time.perf_counter(), self.error
            moment.passed.set()

    def enqueue(self, work: Callable[[], object]) -> Moment:
        moment = Moment()
        self._work.put((work, moment))
        return moment

    def wait_event(self, event: Event):
        moment = event.moment
        if moment is not None:  # an event that was never recorded is no wait
            self.enqueue(moment.passed.wait)

    def query(self) -> bool:
        moment = self.enqueue(lambda: None)
        idle = moment.passed.wait(0.01)
        if idle and moment.error is not None:
            raise RuntimeError(f"CUDA error: {moment.error}")
        return idle

    def synchronize(self):
        _wait(self.enqueue(lambda: None))


class Event:
    def __init__(self, enable_timing=False, blocking=False):
        self.moment: Moment | None = None

    def record(self, stream: Stream):
        self.moment = stream.enqueue(lambda: None)

    def synchronize(self):
        if self.moment is not None:
            _wait(self.moment)

    def elapsed_time(self, end: Event) -> float:
        assert self.moment.passed.is_set()
        assert end.moment.passed.is_set()
        return (end.moment.at - self.moment.at) * 1e3


def _wait(moment: Moment):
    assert moment.passed.wait(20)
    if moment.error is not None:
        raise RuntimeError(f"CUDA error: {moment.error}")


def _copy_over(self: Context, name: str, to_gpu: bool) -> None:
    target, source = self.view(name, to_gpu), self.view(name, not to_gpu)
    self.stream.enqueue(lambda: target.copy_(source))


def pretend_gpu(monkeypatch) -> None:
    """Let `grace.runtime` find a GPU until the test ends."""
    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "stream", contextlib.nullcontext)
    monkeypatch.setattr(Context, "copy_over", _copy_over)
    for name in ("empty", "zeros"):
        real = getattr(torch, name)

        def make(*sizes, real=real, device="cpu", pin_memory=False, **options):
            return real(*sizes, **options)

        monkeypatch.setattr(torch, name, make)
