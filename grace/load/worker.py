"""One process that sends: levels in over a pipe, counts out."""

from __future__ import annotations

import asyncio
import gc
import select
import selectors
import signal
import time
from collections.abc import MutableSequence, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection as Pipe

from grace.load.bodies import in_order
from grace.load.client import Client, connector
from grace.load.drive import closed_loop, open_loop, poisson_moments
from grace.load.level import Level
from grace.load.options import LoadOptions
from grace.load.tally import Tally, Window
from grace.load.target import Target

STOP = "stop"
TICK_S = 0.1
"""Between two looks at how far a level is."""


@dataclass(frozen=True)
class Share:
    """What one process does of a level.

    Attributes:
        level: its part.
        count: its part of `LoadOptions.count`.
        part, parts: which of how many processes it is.
        start: when the warm-up begins, by `time.monotonic`, which all processes share.
        name: of the level, for seeds.
    """

    level: Level
    count: int | None
    part: int
    parts: int
    start: float
    name: str


class FineSelector(selectors.EpollSelector):
    """Wakes at the moment asked for; epoll alone rounds up to whole milliseconds."""

    def select(self, timeout: float | None = None) -> list:
        """Return what is ready; see `selectors.BaseSelector`."""
        if timeout is not None and timeout > 0:
            if timeout < 0.002:
                select.select([self.fileno()], [], [], timeout)
                timeout = 0
            else:
                timeout -= 0.001  # the last millisecond is waited for above
        return super().select(timeout)


def work(
    pipe: Pipe,
    done: MutableSequence[int],
    target: Target,
    bodies: Sequence[bytes],
    options: LoadOptions,
) -> None:
    """Answer each `Share` that comes with the message of a `Tally`, until the pipe ends.

    Args:
        pipe: to the process that leads.
        done: shared memory; its entry `part` follows how many requests of the window were sent.
        target: the server.
        bodies: of requests.
        options: of the whole measurement.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the leader hears it, and says what to do
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    payloads = [target.payload(body) for body in bodies]
    gc.freeze()  # what the leader had imported: a collector that visits it would be late for sends
    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(FineSelector())) as runner:
        while True:
            try:
                share = pipe.recv()
            except EOFError:
                return
            if share != STOP:  # one that came after the level's end
                tally = runner.run(_drive(share, pipe, done, target, payloads, options))
                pipe.send(tally.to_message())


async def _drive(
    share: Share,
    pipe: Pipe,
    done: MutableSequence[int],
    target: Target,
    payloads: Sequence[bytes],
    options: LoadOptions,
) -> Tally:
    loop = asyncio.get_running_loop()
    size, seed = share.level.size, f"{options.seed}/{share.name}/{share.part}"
    duration_s = options.duration_s if share.count is None else None
    window = Window(share.start + options.warmup_s, duration_s, share.count)
    bodies = in_order(payloads, options.order, seed, share.part, share.parts)
    limit = int(size) if share.level.closed else max(options.connections // share.parts, 1)
    client = Client(connector(target), limit)
    await asyncio.sleep(share.start - loop.time())
    if share.level.closed:
        work = closed_loop(client.exchange, bodies, int(size), window, options.timeout_s)
    else:
        moments = poisson_moments(size, share.start, seed)
        work = open_loop(client.exchange, bodies, moments, window, options.timeout_s)
    driving = asyncio.create_task(work)
    watching = asyncio.create_task(_watch(window, done, share.part))
    loop.add_reader(pipe.fileno(), driving.cancel)  # it says stop, or the leader is gone
    try:
        await driving
    except asyncio.CancelledError:
        window.close(loop.time())
    finally:
        loop.remove_reader(pipe.fileno())
        watching.cancel()
        client.close()
    return window.finish()


async def _watch(window: Window, done: MutableSequence[int], part: int) -> None:
    """Follow what has ended, and how much of a core this process uses while the window is open."""
    clock = asyncio.get_running_loop().time
    await asyncio.sleep(window.opens - clock())
    began, used = clock(), time.process_time()
    while True:
        await asyncio.sleep(TICK_S)
        done[part] = window.tally.begun
        if clock() < window.closes:
            window.tally.cpu = (time.process_time() - used) / (clock() - began)
