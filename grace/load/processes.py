"""Levels one after the other, each by several processes at the same time."""

from __future__ import annotations

import contextlib
import multiprocessing
import time
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection as Pipe
from multiprocessing.connection import wait

from grace.errors import GraceError
from grace.load.level import Level
from grace.load.measured import Measured
from grace.load.options import LoadOptions
from grace.load.tally import Tally
from grace.load.target import Target
from grace.load.worker import STOP, TICK_S, Share, work
from grace.progress import progress

START_S = 0.05
"""Between the word to all processes and the first request."""


def run_levels(target: Target, bodies: Sequence[bytes], options: LoadOptions) -> Iterator[Measured]:
    """Measure each level and yield what it showed.

    Processes are forked, so this is for a program without threads of its own. When the user
    interrupts, the level under way is yielded as far as it got, then KeyboardInterrupt goes on.

    Args:
        target: the server.
        bodies: of requests, at least one.
        options: levels and how they are driven.

    Raises:
        GraceError: if a process of the generator died.
    """
    done = multiprocessing.RawArray("q", options.processes)
    with _forked(target, bodies, options, done) as pipes:
        for level in options.levels:
            measured = _measure(level, pipes, options, done)
            yield measured
            if measured.partial:
                raise KeyboardInterrupt


def _measure(
    level: Level, pipes: Sequence[Pipe], options: LoadOptions, done: Sequence[int]
) -> Measured:
    parts = min(len(pipes), int(level.size)) if level.closed else len(pipes)
    if options.count is not None:
        parts = min(parts, options.count)
    start = time.monotonic() + START_S
    for part, pipe in enumerate(pipes[:parts]):
        done[part] = 0
        count = options.count
        if count is not None:
            count = count // parts + (part < count % parts)
        pipe.send(Share(level.share(part, parts), count, part, parts, start, level.label))
    tally, partial, waiting = Tally(), False, list(pipes[:parts])
    try:
        with _shown(level, options) as show:
            while waiting:
                _collect(wait(waiting, TICK_S), waiting, tally)
                show(time.monotonic() - start, sum(done))
    except KeyboardInterrupt:
        partial = True
        for pipe in waiting:
            pipe.send(STOP)
        while waiting:
            _collect(wait(waiting), waiting, tally)
    return Measured(level, tally, partial)


def _collect(ready: Sequence[Pipe], waiting: list[Pipe], tally: Tally) -> None:
    for pipe in ready:
        try:
            tally.merge(Tally.from_message(pipe.recv()))
        except EOFError:
            raise GraceError("a process of the generator died; see above") from None
        waiting.remove(pipe)


@contextlib.contextmanager
def _shown(level: Level, options: LoadOptions) -> Iterator:
    """Yield `show(seconds, sent)`, which moves a bar over seconds, or requests if they count."""
    total = options.count or round(options.warmup_s + options.duration_s)
    shown = 0
    with progress(level.label, total) as advance:

        def show(seconds: float, sent: int) -> None:
            nonlocal shown
            now = min(int(seconds) if options.count is None else sent, total)
            advance(max(now - shown, 0))
            shown = max(now, shown)

        yield show


@contextlib.contextmanager
def _forked(
    target: Target, bodies: Sequence[bytes], options: LoadOptions, done: Sequence[int]
) -> Iterator[list[Pipe]]:
    """Start the processes and yield a pipe to each; they end when the pipes do."""
    context = multiprocessing.get_context("fork")  # at once, with the bodies there already
    pipes, processes = [], []
    try:
        for _ in range(options.processes):
            ours, theirs = context.Pipe()
            process = context.Process(
                target=work, args=(theirs, done, target, bodies, options), daemon=True
            )
            process.start()
            theirs.close()
            pipes.append(ours)
            processes.append(process)
        yield pipes
    finally:
        for pipe in pipes:
            pipe.close()
        for process in processes:
            process.join(1)
            process.kill()
