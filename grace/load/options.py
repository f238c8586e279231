"""What a measurement is asked to do, checked."""

from __future__ import annotations

import math
from dataclasses import dataclass

from grace.errors import ConfigError
from grace.load.bodies import ORDERS
from grace.load.level import Level

MOST_IN_FLIGHT = 100_000
MOST_PROCESSES = 256


@dataclass(frozen=True, kw_only=True)
class LoadOptions:
    """How each level is driven.

    Attributes:
        levels: one after the other.
        duration_s: of the window that counts, where no `count` is given.
        count: requests of the window.
        warmup_s: load before the window.
        timeout_s: until a request counts as not answered.
        connections: the most that an open loop keeps, all processes together.
        processes: that send.
        order: of the requests, `cycle` or `sample`.
        seed: of arrivals and of `sample`.
    """

    levels: tuple[Level, ...]
    duration_s: float = 10.0
    count: int | None = None
    warmup_s: float = 2.0
    timeout_s: float = 10.0
    connections: int = 512
    processes: int = 1
    order: str = "cycle"
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.levels:
            raise ConfigError("name levels: --closed 1,2,4 or --open 100,200, or both")
        for name, value, least in (
            ("--duration", self.duration_s, 0.001),
            ("--warmup", self.warmup_s, 0),
            ("--timeout", self.timeout_s, 0.001),
            ("--count", 1 if self.count is None else self.count, 1),
            ("--connections", self.connections, 1),
            ("--processes", self.processes, 1),
        ):
            if not math.isfinite(value) or value < least:
                raise ConfigError(f"{name} must be at least {least:g}, got {value:g}")
        if self.processes > MOST_PROCESSES:
            raise ConfigError(f"--processes must be at most {MOST_PROCESSES}, got {self.processes}")
        if self.order not in ORDERS:
            raise ConfigError(f"--order must be {' or '.join(ORDERS)}, got {self.order!r}")


def parse_levels(closed: str | None, opened: str | None) -> tuple[Level, ...]:
    """Return the levels of `--closed 1,2,4` and `--open 100,200`, each in the order given.

    Raises:
        ConfigError: naming the option and the entry that is no level.
    """
    levels = []
    for text in closed.split(",") if closed else ():
        size = int(text) if text.strip().isdecimal() else 0
        if not 1 <= size <= MOST_IN_FLIGHT:
            raise ConfigError(
                f"--closed: expected requests in flight, 1 to {MOST_IN_FLIGHT:,}, got {text!r}"
            )
        levels.append(Level(closed=True, size=size))
    for text in opened.split(",") if opened else ():
        try:
            rate = float(text)
        except ValueError:
            rate = math.nan
        if not 0 < rate < math.inf:
            raise ConfigError(f"--open: expected requests a second, above 0, got {text!r}")
        levels.append(Level(closed=False, size=rate))
    return tuple(levels)
