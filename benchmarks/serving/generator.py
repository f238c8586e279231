"""`grace load` in processes and on cores of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.record import ROOT


@dataclass(frozen=True)
class Generator:
    """How load is made.

    Attributes:
        requests: file of them.
        cores: where its processes run, one a core.
        seconds, warmup: of each level.
        mean_ms, p99_ms: the limits that a level must keep.
    """

    requests: Path
    cores: Sequence[int]
    seconds: float
    warmup: float
    mean_ms: float
    p99_ms: float

    def start(
        self,
        url: str,
        closed: Sequence[int],
        opened: Sequence[float] = (),
        warmup: float | None = None,
    ) -> subprocess.Popen:
        """Begin a measurement of levels, with another warm-up if asked; `result` waits for it."""
        warmup = self.warmup if warmup is None else warmup
        command = [
            sys.executable, "-m", "grace", "load", "--url", url, "--requests", str(self.requests),
            "--duration", str(self.seconds), "--warmup", str(warmup), "--json",
            "--mean", str(self.mean_ms), "--p99", str(self.p99_ms),
            "--processes", str(len(self.cores)), "--order", "sample",
        ]  # fmt: skip
        if closed:
            command += ["--closed", ",".join(map(str, closed))]
        if opened:
            command += ["--open", ",".join(map(str, opened))]
        with _on(self.cores):
            return subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT)

    def measure(self, url: str, closed: Sequence[int], opened: Sequence[float] = ()) -> dict:
        """Measure levels; returns what `grace load --json` says."""
        return result(self.start(url, closed, opened))


def result(process: subprocess.Popen) -> dict:
    """Wait for a measurement and return what it says."""
    output, _ = process.communicate()
    if process.returncode != 0:
        raise RuntimeError(f"grace load ended with {process.returncode}")
    return json.loads(output)


def split_cores() -> tuple[list[int], list[int]]:
    """Return cores for the server and for the generator, which gets a quarter, one at least.

    Fewer than four are shared: a server without one of them would be another server.
    """
    cores = sorted(os.sched_getaffinity(0))
    few = max(len(cores) // 4, 1)
    return cores if len(cores) < 4 else cores[:-few], cores[-few:]


@contextmanager
def _on(cores: Sequence[int]) -> Iterator[None]:
    """A process that this thread starts inside runs on these cores."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
