"""What the server's threads are doing: Python, native code, waiting for the GPU.

A sampler looks at every thread's innermost Python frame some hundred times a second. Where that
frame is inside a call of a function in C++, the expression of the call says which it is.
"""

from __future__ import annotations

import linecache
import sys
import threading
import time
from collections import Counter
from functools import cache
from itertools import islice
from types import CodeType

EVERY_S = 0.004
IDLE = {
    "acquire", "accept", "epoll", "get", "join", "poll", "recv", "recv_into", "run_forever",
    "run_until_complete", "select", "sleep", "wait", "wait_for",
}  # fmt: skip
GPU_WAITS = {"cpu", "item", "query", "synchronize", "tolist"}
NATIVE, GPU, PYTHON = "C++", "GPU waits", "Python"
KINDS = (PYTHON, NATIVE, GPU)


class Sampler:
    """Counts samples in which at least one thread was at work of a kind.

    Runs between `with` and its end; threads that exist before, the caller's and its own left out.

    Args:
        gpu: whether there is one to wait for.
    """

    def __init__(self, gpu: bool):
        self._gpu = gpu
        self._counts: Counter[str] = Counter()
        self._samples = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(threading.get_ident(),))

    def __enter__(self) -> Sampler:
        self._began, self._cpu = time.monotonic(), time.process_time()
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join()
        self.cores = (time.process_time() - self._cpu) / (time.monotonic() - self._began)

    def shares(self) -> dict[str, float]:
        """Return, per kind, the share of samples in which some thread was at it."""
        return {kind: self._counts[kind] / max(self._samples, 1) for kind in KINDS}

    def _run(self, caller: int) -> None:
        own = threading.get_ident()
        while not self._over.wait(EVERY_S):
            frames = sys._current_frames()
            self._samples += 1
            self._counts.update({
                kind_of(frame.f_code, frame.f_lasti, self._gpu)
                for thread, frame in frames.items()
                if thread not in (own, caller)
            })  # fmt: skip


@cache
def kind_of(code: CodeType, instruction: int, gpu: bool) -> str | None:
    """Return what a frame of this code is at, at an instruction; None where it sleeps."""
    callee = called(code, instruction)
    name = callee.rpartition(".")[2]
    if name in IDLE:
        return None
    if "_native" in callee:
        return NATIVE
    return GPU if gpu and name in GPU_WAITS else PYTHON


def called(code: CodeType, instruction: int) -> str:
    """Return the name of what a frame is calling, such as `self._native.expand`, or nothing."""
    position = next(islice(code.co_positions(), instruction // 2, None), (None,) * 4)
    first, _, start, _ = position
    if first is None or start is None:
        return ""
    # Columns count UTF-8 bytes.
    text = linecache.getline(code.co_filename, first).encode()[start:].decode("utf-8", "replace")
    name, bracket, _ = text.partition("(")
    return name.strip() if bracket else ""
