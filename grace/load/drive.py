"""The two ways to put load on a server. All time is the event loop's, so that tests can make it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from random import Random

from grace.load.tally import Window, clamped

Exchange = Callable[[bytes, float], Awaitable[str]]
"""Sends one request and gives its outcome, at the latest at a moment of the loop's clock."""


async def closed_loop(
    exchange: Exchange,
    bodies: Iterator[bytes],
    in_flight: int,
    window: Window,
    timeout_s: float,
) -> None:
    """Keep a number of requests in flight until the window closes; then wait for the last ones.

    Each is followed by the next at once, without a pause of a client. A server that stalls is asked
    nothing meanwhile, so few requests meet the stall; an open loop shows what visitors would see.

    Args:
        exchange: to the server.
        bodies: what to send; never ends.
        in_flight: requests.
        window: what counts.
        timeout_s: of a request.
    """
    clock = asyncio.get_running_loop().time

    async def client() -> None:
        while window.begin(began := clock()):
            outcome = await exchange(next(bodies), began + timeout_s)
            window.end(outcome, began, clock())

    await asyncio.gather(*(client() for _ in range(in_flight)))


async def open_loop(
    exchange: Exchange,
    bodies: Iterator[bytes],
    moments: Iterator[float],
    window: Window,
    timeout_s: float,
) -> None:
    """Send a request at each moment, whatever became of those before, and wait for the last ones.

    Latencies and deadlines count from that moment, also where the request had to wait for a
    connection or for this process: nobody's waiting is left out because others waited ("coordinated
    omission"), whether the answer came, was a refusal or did not come.

    Args:
        exchange: to the server.
        bodies: what to send; never ends.
        moments: of the loop's clock, ascending; never ends.
        window: what counts.
        timeout_s: of a request.
    """
    clock = asyncio.get_running_loop().time
    waiting: set[asyncio.Task] = set()

    async def request(moment: float) -> None:
        outcome = await exchange(next(bodies), moment + timeout_s)
        window.end(outcome, moment, clock())

    try:
        for moment in moments:
            if not window.begin(moment):
                break
            await asyncio.sleep(max(moment - clock(), 0.0))
            if moment >= window.opens:
                window.tally.late.record_value(clamped(clock() - moment))
            task = asyncio.create_task(request(moment))
            waiting.add(task)
            task.add_done_callback(waiting.discard)
        await asyncio.gather(*waiting)
    finally:
        for task in waiting:
            task.cancel()


def poisson_moments(rate_per_s: float, start: float, seed: str) -> Iterator[float]:
    """Yield the arrivals of a Poisson process after a start, without end."""
    draw = Random(seed)
    moment = start
    while True:
        moment += draw.expovariate(rate_per_s)
        yield moment
