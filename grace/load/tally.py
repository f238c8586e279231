"""What became of the requests of one level: a histogram an outcome, counts of the window."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from hdrh.histogram import HdrHistogram

LONGEST_US, DIGITS = 3_600_000_000, 3
"""Histograms reach to an hour, with three digits that matter: what they say is within 0.1 %."""


def is_answer(outcome: str) -> bool:
    """Whether an outcome is the answer that was asked for: a status of 200 to 299."""
    return outcome[0] == "2"


def new_histogram() -> HdrHistogram:
    """Return an empty histogram of microseconds."""
    return HdrHistogram(1, LONGEST_US, DIGITS)


@dataclass
class Tally:
    """Counts of one level, of one process or of all.

    A request belongs to the window if it was to be sent inside it, and then counts however late its
    answer comes; for the throughput an answer belongs to the window if it came inside it.

    Attributes:
        latencies: microseconds from the moment a request was to be sent to its end, by outcome: the
            status of the answer, such as `200`, or `timeout`, `connection`, `malformed`.
        begun: requests of the window.
        answers_per_s: good answers that came inside the window, by its length.
        window_s: the length of the window.
        late: microseconds between the moment a request was to be sent and the moment when the
            generator came to it; open loop only.
        cpu: share of a core that the busiest generator process used.
    """

    latencies: dict[str, HdrHistogram] = field(default_factory=dict)
    begun: int = 0
    answers_per_s: float = 0.0
    window_s: float = 0.0
    late: HdrHistogram = field(default_factory=new_histogram)
    cpu: float = 0.0

    def add(self, outcome: str, seconds: float) -> None:
        """Count a request of the window."""
        histogram = self.latencies.get(outcome)
        if histogram is None:
            histogram = self.latencies[outcome] = new_histogram()
        histogram.record_value(clamped(seconds))

    def merge(self, other: Tally) -> None:
        """Add what another process counted in the same window."""
        for outcome, histogram in other.latencies.items():
            self.latencies.setdefault(outcome, new_histogram()).add(histogram)
        self.late.add(other.late)
        self.begun += other.begun
        self.answers_per_s += other.answers_per_s
        self.window_s = max(self.window_s, other.window_s)
        self.cpu = max(self.cpu, other.cpu)

    def to_message(self) -> dict:
        """Return what `from_message` takes; histograms cannot be pickled."""
        encoded = {outcome: each.encode() for outcome, each in self.latencies.items()}
        return vars(self) | {"latencies": encoded, "late": self.late.encode()}

    @classmethod
    def from_message(cls, message: Mapping) -> Tally:
        """Return the tally that a process sent."""
        latencies = {outcome: _decoded(text) for outcome, text in message["latencies"].items()}
        return cls(**(message | {"latencies": latencies, "late": _decoded(message["late"])}))


class Window:
    """The part of a level that counts, on the event loop's clock.

    Args:
        opens: when the warm-up ends.
        duration_s: how long it lasts; None where `count` says when it ends.
        count: of its requests; it closes when the one after them is to be sent.
    """

    def __init__(self, opens: float, duration_s: float | None = None, count: int | None = None):
        self.tally = Tally()
        self.opens = opens
        self.closes = math.inf if duration_s is None else opens + duration_s
        self._count, self._answers = count, 0

    def begin(self, moment: float) -> bool:
        """Note that a request is to be sent at a moment; whether the level still goes on."""
        if self.tally.begun == self._count:
            self.close(moment)
        if moment >= self.closes:
            return False
        self.tally.begun += moment >= self.opens
        return True

    def end(self, outcome: str, began: float, now: float) -> None:
        """Note how and when a request ended that was to be sent at `began`."""
        if self.opens <= now < self.closes:
            self._answers += is_answer(outcome)
        if began >= self.opens:
            self.tally.add(outcome, now - began)

    def close(self, moment: float) -> None:
        """End the window, unless it has ended before."""
        self.closes = min(self.closes, moment)

    def finish(self) -> Tally:
        """Return the counts; the window has been closed."""
        self.tally.window_s = max(self.closes - self.opens, 0.0)
        if self.tally.window_s > 0:
            self.tally.answers_per_s = self._answers / self.tally.window_s
        return self.tally


def clamped(seconds: float) -> int:
    """Return whole microseconds that a histogram can hold."""
    return min(max(round(seconds * 1e6), 1), LONGEST_US)


def _decoded(text: bytes) -> HdrHistogram:
    histogram = new_histogram()
    histogram.decode_and_add(text)
    return histogram
