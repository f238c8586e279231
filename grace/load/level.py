"""One step of a measurement: how much load, and for how long."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Level:
    """One amount of load.

    Attributes:
        closed: whether `size` requests are in flight at every moment (closed loop), each answer
            followed at once by the next request; otherwise requests come as a Poisson process of
            `size` a second, whatever becomes of those before (open loop).
        size: requests in flight, an integer, or requests a second.
    """

    closed: bool
    size: float

    @property
    def label(self) -> str:
        """Such as `8 in flight` or `400/s`."""
        return f"{self.size:,.0f} in flight" if self.closed else f"{self.size:,g}/s"

    def share(self, part: int, parts: int) -> Level:
        """Return what one of several processes does: in flight as evenly as integers allow.

        Poisson processes add up to one, so that in an open loop each has an equal share of the
        rate.
        """
        if not self.closed:
            return Level(closed=False, size=self.size / parts)
        size = int(self.size)
        return Level(closed=True, size=size // parts + (part < size % parts))
