"""What tests of the load generator share: a clock that jumps, and servers that keep to it."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Awaitable, Callable, Coroutine
from itertools import repeat

from grace.load.drive import closed_loop, open_loop
from grace.load.level import Level
from grace.load.measured import Measured
from grace.load.tally import Window

BODIES = [b"{}"]


class JumpingSelector(selectors.DefaultSelector):
    """Instead of waiting it moves its loop's clock to where the wait would end."""

    loop: JumpingLoop

    def select(self, timeout: float | None = None) -> list:
        ready = super().select(0)
        if not ready:
            assert timeout is not None, "everything waits for something that never comes"
            self.loop.now += timeout
        return ready


class JumpingLoop(asyncio.SelectorEventLoop):
    """An event loop whose time passes only while nothing is to be done."""

    def __init__(self) -> None:
        self.now = 0.0
        selector = JumpingSelector()
        selector.loop = self
        super().__init__(selector)

    def time(self) -> float:
        return self.now


def run_virtual(work: Coroutine) -> object:
    """Run a coroutine on a clock of its own, which begins at 0."""
    with asyncio.Runner(loop_factory=JumpingLoop) as runner:
        return runner.run(work)


class FakeServer:
    """Answers after the delay of each moment, at once for all who ask or one after the other.

    Args:
        delay: seconds of work for a request that arrives at a moment.
        lanes: requests that are worked on at a time; None for all.
        stalls: (from, to): nothing is answered meanwhile, and all that came is answered at its end,
            then what is left of the work.
        status: of the answer to a request that arrives at a moment.
    """

    def __init__(
        self,
        delay: Callable[[float], float],
        lanes: int | None = None,
        stalls: tuple[tuple[float, float], ...] = (),
        status: Callable[[float], int] = lambda moment: 200,
    ):
        self.delay, self.stalls, self.status = delay, stalls, status
        self.lanes = None if lanes is None else asyncio.Semaphore(lanes)
        self.arrivals: list[float] = []

    async def answer(self) -> int:
        arrived = asyncio.get_running_loop().time()
        self.arrivals.append(arrived)
        if self.lanes is None:
            await self._work(arrived)
        else:
            async with self.lanes:
                await self._work(arrived)
        return self.status(arrived)

    async def _work(self, arrived: float) -> None:
        clock = asyncio.get_running_loop().time
        for first, last in self.stalls:
            if first <= clock() < last:
                await asyncio.sleep(last - clock())
        await asyncio.sleep(self.delay(arrived))

    async def exchange(self, body: bytes, deadline: float) -> str:
        """As `Client.exchange`, with as many connections as it takes."""
        try:
            async with asyncio.timeout_at(deadline):
                return str(await self.answer())
        except TimeoutError:
            return "timeout"


class FakeWire:
    """A `Wire` to a fake server."""

    def __init__(self, server: FakeServer):
        self.usable, self._server = True, server

    def send(self, payload: bytes) -> Awaitable[int]:
        return self._server.answer()

    def abort(self) -> None:
        self.usable = False


def measure_closed(
    exchange: Callable, in_flight: int, seconds: float, warmup: float = 0.0, timeout: float = 60.0
) -> Measured:
    """Drive a closed loop on a virtual clock."""

    async def drive() -> Window:
        window = Window(warmup, seconds)
        await closed_loop(exchange, repeat(BODIES[0]), in_flight, window, timeout)
        return window

    return Measured(Level(closed=True, size=in_flight), run_virtual(drive()).finish())


def measure_open(
    exchange: Callable, moments: list[float], seconds: float, warmup: float = 0.0,
    timeout: float = 60.0,
) -> Measured:  # fmt: skip
    """Drive an open loop on a virtual clock; the last moment must be past the window."""

    async def drive() -> Window:
        window = Window(warmup, seconds)
        await open_loop(exchange, repeat(BODIES[0]), iter(moments), window, timeout)
        return window

    rate = len(moments) / moments[-1]
    return Measured(Level(closed=False, size=rate), run_virtual(drive()).finish())
