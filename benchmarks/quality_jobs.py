"""Commands that depend on each other, several at once, until a deadline; each done once."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

POLL_S = 0.2
STOP_S = 30
"""How long a stopped command may take to end."""


@dataclass(frozen=True)
class Job:
    """A command of `grace`.

    Attributes:
        name: of its log and its mark, unique.
        arguments: behind `grace`.
        needs: names of jobs that come first.
        stops: whether it may be stopped at the deadline and count as done, with what it has.
        made: what it leaves; a stopped job without it failed.
    """

    name: str
    arguments: tuple[str, ...]
    needs: tuple[str, ...] = ()
    stops: bool = False
    made: Path | None = None


@dataclass
class Outcome:
    """How the jobs ended: each name is in one list.

    Attributes:
        done: now or in an earlier call.
        stopped: at the deadline, with something to show.
        failed: with an exit code, or stopped without anything to show.
        skipped: never started.
    """

    done: list[str]
    stopped: list[str]
    failed: list[str]
    skipped: list[str]


def run_jobs(
    jobs: Sequence[Job],
    folder: Path,
    at_once: int,
    deadline: float,
    say: Callable[[str], None] = print,
) -> Outcome:
    """Run jobs in the order given, as far as what they need is done.

    Args:
        jobs: each after those that it needs.
        folder: of `logs/<name>.log` and of `done/<name>`, which marks a job that is not repeated.
        at_once: processes at a time.
        deadline: `time.monotonic()` after which no job that stops is started and those that run
            are stopped; others still run.
        say: gets a line about every job that ends.
    """
    for name in ("logs", "done"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    outcome = Outcome([], [], [], [])
    waiting: list[Job] = []
    for job in jobs:
        # What follows a job that runs again runs again, too.
        if (folder / "done" / job.name).exists() and set(outcome.done).issuperset(job.needs):
            outcome.done.append(job.name)
        else:
            waiting.append(job)
    running: list[_Running] = []
    try:
        while waiting or running:
            late = time.monotonic() >= deadline
            for one in list(running):
                if one.process.poll() is not None:
                    running.remove(one)
                    one.sort_into(outcome, folder, say)
                elif late and one.job.stops:
                    one.stop()
            lost = {*outcome.failed, *outcome.skipped}
            for job in list(waiting):
                if late and job.stops and job.made is not None and job.made.exists():
                    waiting.remove(job)
                    outcome.stopped.append(job.name)  # in an earlier call
                elif lost.intersection(job.needs) or (late and job.stops):
                    waiting.remove(job)
                    outcome.skipped.append(job.name)
                    lost.add(job.name)
                    say(f"skipped  {job.name}")
                elif len(running) < at_once and {*outcome.done, *outcome.stopped}.issuperset(
                    job.needs
                ):
                    waiting.remove(job)
                    running.append(_start(job, folder))
            time.sleep(POLL_S)
    finally:
        for one in running:
            one.process.kill()
    return outcome


@dataclass
class _Running:
    job: Job
    process: subprocess.Popen
    started: float
    stopped: float | None = None

    def stop(self) -> None:
        """Ask it to end; later, no longer ask."""
        if self.stopped is None:
            self.stopped = time.monotonic()
            self.process.terminate()
        elif time.monotonic() > self.stopped + STOP_S:
            self.process.kill()

    def sort_into(self, outcome: Outcome, folder: Path, say: Callable[[str], None]) -> None:
        """Say how it ended."""
        name, seconds = self.job.name, time.monotonic() - self.started
        if self.process.returncode == 0:
            (folder / "done" / name).touch()
            outcome.done.append(name)
            say(f"done     {name}  {seconds:.0f} s")
        elif self.stopped is not None and self.job.made is not None and self.job.made.exists():
            outcome.stopped.append(name)
            say(f"stopped  {name}  {seconds:.0f} s")
        else:
            outcome.failed.append(name)
            last = (folder / "logs" / f"{name}.log").read_text().strip().splitlines()[-3:]
            if self.stopped is not None and self.job.made is not None:
                last.append(f"stopped at the deadline, before there was {self.job.made}")
            say(f"failed   {name}  {seconds:.0f} s  " + "  ".join(last))


def _start(job: Job, folder: Path) -> _Running:
    # One thread each: jobs share the cores, and small models wait for their threads.
    environment = {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"} | os.environ
    with open(folder / "logs" / f"{job.name}.log", "ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "grace", *job.arguments],
            env=environment, stdout=log, stderr=subprocess.STDOUT,
        )  # fmt: skip
    return _Running(job, process, time.monotonic())
