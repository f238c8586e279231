"""What one level showed."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

from hdrh.histogram import HdrHistogram

from grace.load.level import Level
from grace.load.tally import Tally, clamped, is_answer, new_histogram


@dataclass(frozen=True)
class Measured:
    """One level's figures, all processes together.

    Percentiles are over all requests of the window, those without a good answer among them: these
    count as never answered, so that a server cannot look fast by refusing. The mean is over good
    answers.

    Attributes:
        level: what was asked for.
        tally: the counts.
        partial: whether the measurement was stopped before the level's end.
    """

    level: Level
    tally: Tally
    partial: bool = False

    @property
    def answered(self) -> int:
        """Good answers to requests of the window."""
        return self._good.get_total_count()

    @property
    def ended(self) -> int:
        """Requests of the window whose outcome is known."""
        return sum(each.get_total_count() for each in self.tally.latencies.values())

    @property
    def failures(self) -> dict[str, int]:
        """Requests of the window without a good answer, by outcome, the most frequent first."""
        counts = {
            outcome: each.get_total_count()
            for outcome, each in self.tally.latencies.items()
            if not is_answer(outcome)
        }
        if self.tally.begun > self.ended:
            counts["stopped"] = self.tally.begun - self.ended
        return dict(sorted(counts.items(), key=lambda entry: (-entry[1], entry[0])))

    @property
    def max_ms(self) -> float:
        """The slowest good answer; NaN where there is none."""
        return self._good.get_max_value() / 1e3 if self.answered else math.nan

    @property
    def throughput_per_s(self) -> float:
        """Good answers a second."""
        return self.tally.answers_per_s

    @property
    def mean_ms(self) -> float:
        """Of good answers; NaN where there is none."""
        return self._good.get_mean_value() / 1e3 if self.answered else math.nan

    def percentile_ms(self, percent: float) -> float:
        """Return the latency that this share of all requests does not pass, infinite where more
        had no good answer; NaN where nothing is known.
        """
        if not self.ended:
            return math.nan
        rank = max(math.ceil(percent / 100 * self.ended - 1e-9), 1)
        if rank > self.answered:
            return math.inf
        return self._good.get_value_at_percentile(100 * rank / self.answered) / 1e3

    def goodput_per_s(self, limit_ms: float) -> float:
        """Return the good answers a second that kept a limit."""
        if self.tally.window_s == 0 or not self.ended:
            return 0.0
        highest = self._good.get_highest_equivalent_value(clamped(limit_ms / 1e3))
        kept = sum(
            item.count_at_value_iterated_to
            for item in self._good.get_recorded_iterator()
            if item.value_iterated_to <= highest
        )
        return kept / self.tally.window_s

    @cached_property
    def _good(self) -> HdrHistogram:
        good = new_histogram()
        for outcome, histogram in self.tally.latencies.items():
            if is_answer(outcome):
                good.add(histogram)
        return good
