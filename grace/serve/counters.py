"""What an engine counts, whoever shows it."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

OUTCOMES = ("ok", "invalid", "expired", "cancelled", "overloaded", "draining", "failed")
STAGES = ("queue", "input", "compute", "post")
BOUNDS_MS = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 50.0, 100.0, 250.0, 500.0, 1000.0)


@dataclass(frozen=True)
class Histogram:
    """How long something took.

    Attributes:
        counts: how many took at most `BOUNDS_MS[i]` but more than the bound before; last, how many
            took longer than all bounds.
        sum_ms: of all of them.
    """

    counts: tuple[int, ...]
    sum_ms: float

    @property
    def count(self) -> int:
        """How many there were."""
        return sum(self.counts)


@dataclass(frozen=True)
class EngineCounters:
    """An engine's counts at one moment, since it began.

    Attributes:
        version: that the latest batch was answered from; None before the first.
        admitted: requests in the engine now, waiting or in a batch.
        batches: how many there were of each size.
        requests: how many came to each end of `OUTCOMES`.
        stages: per stage of `STAGES`; `queue` by request, the others by batch.
        funnel: sums of the answers' funnels.
        dropped: sums of what the last filter dropped, by reason.
        swaps: how often a batch was of another index version than the one before.
        graph_replays: searches that were a CUDA graph's replay.
    """

    version: str | None
    admitted: int
    batches: dict[int, int]
    requests: dict[str, int]
    stages: dict[str, Histogram]
    funnel: dict[str, int]
    dropped: dict[str, int]
    swaps: int
    graph_replays: int

    @property
    def eligibility_rate(self) -> float:
        """The share of expanded ads that the last filter kept; 1 where none was expanded."""
        expanded = self.funnel.get("expanded_ads", 0)
        return self.funnel["eligible_ads"] / expanded if expanded else 1.0


class Counts:
    """The numbers behind `EngineCounters`; any thread may add."""

    def __init__(self):
        self._lock = threading.Lock()
        self._version: str | None = None
        self._batches: Counter[int] = Counter()
        self._requests = dict.fromkeys(OUTCOMES, 0)
        self._counts = {stage: [0] * (len(BOUNDS_MS) + 1) for stage in STAGES}
        self._sums_ms = dict.fromkeys(STAGES, 0.0)
        self._funnel: Counter[str] = Counter()
        self._dropped: Counter[str] = Counter()
        self._swaps = self._graph_replays = 0

    def note_outcome(self, outcome: str, count: int = 1) -> None:
        """Count requests that came to their end, one of `OUTCOMES`."""
        with self._lock:
            self._requests[outcome] += count

    def note_batch(self, size: int, version: str, waits_ms: list[float]) -> None:
        """Count a batch that begins, and how long each of its requests waited for that."""
        with self._lock:
            self._batches[size] += 1
            self._swaps += self._version not in (None, version)
            self._version = version
            for wait_ms in waits_ms:
                self._add("queue", wait_ms)

    def note_ended(
        self, stages_ms: Mapping[str, float], replayed: bool, funnels: Sequence[dict]
    ) -> None:
        """Count a batch that is over.

        Args:
            stages_ms: what it spent in its stages.
            replayed: whether its search was a graph's replay.
            funnels: of its answers.
        """
        with self._lock:
            for stage, spent_ms in stages_ms.items():
                self._add(stage, spent_ms)
            self._graph_replays += replayed
            for funnel in funnels:
                for name, count in funnel.items():
                    if name == "dropped":
                        for reason, dropped in count.items():
                            self._dropped[reason] += dropped
                    else:
                        self._funnel[name] += count

    def snapshot(self, admitted: int) -> EngineCounters:
        """Return all of it as of now."""
        with self._lock:
            stages = {
                stage: Histogram(tuple(counts), self._sums_ms[stage])
                for stage, counts in self._counts.items()
            }
            return EngineCounters(
                self._version, admitted, dict(self._batches), dict(self._requests), stages,
                dict(self._funnel), dict(self._dropped), self._swaps, self._graph_replays,
            )  # fmt: skip

    def _add(self, stage: str, spent_ms: float) -> None:
        self._counts[stage][bisect_left(BOUNDS_MS, spent_ms)] += 1
        self._sums_ms[stage] += spent_ms
