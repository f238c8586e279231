"""What a server can carry under stated limits: its capacity, not its peak."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from grace.errors import ConfigError
from grace.load.measured import Measured


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What a level must keep.

    Attributes:
        mean_ms: the mean latency of good answers, at most.
        p99_ms: the latency that 99 % of all requests keep.
    """

    mean_ms: float = 20.0
    p99_ms: float = 100.0

    def __post_init__(self) -> None:
        for name, value in (("--mean", self.mean_ms), ("--p99", self.p99_ms)):
            if not value > 0:
                raise ConfigError(f"{name} must be above 0 ms, got {value:g}")

    def keeps(self, measured: Measured) -> bool:
        """Whether a level kept both; one without an answer keeps none."""
        return measured.mean_ms <= self.mean_ms and measured.percentile_ms(99) <= self.p99_ms


def capacity(levels: Sequence[Measured], limits: Limits, closed: bool = True) -> Measured | None:
    """Return the level with the most throughput among those that keep the limits, or None.

    Args:
        levels: measured; those cut short do not count.
        limits: that it must keep.
        closed: of the closed-loop levels, which is how capacity is defined, or of the open ones.
    """
    kept = [
        each
        for each in levels
        if each.level.closed == closed and not each.partial and limits.keeps(each)
    ]
    return max(kept, key=lambda each: each.throughput_per_s, default=None)
