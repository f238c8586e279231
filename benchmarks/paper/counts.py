"""Arithmetic of Table 3 and of the control that the paper lacks."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from benchmarks.paper.ads import Generated, Passed
from grace.evaluate.metrics import Estimate, bootstrap
from grace.evaluate.passes import bucket_labels

PAPER_BOUNDS = (5_000, 10_000)


@dataclass(frozen=True)
class Outcome:
    """One mode's ads, counted per request.

    Attributes:
        stages: int64 [R, 4], ads generated; of these, accepted by their own bitmask; of these, by
            their own Bloom filter; accepted by the exact filter.
        sids: int64 [R], generated SIDs.
        eligible_sids: int64 [R], those with an ad that the exact filter accepts.
        accepted: int64 [n + 1], running sum of accepted ads over all generated ones.
        starts: int64 [R], where each request's ads begin among those.
    """

    stages: np.ndarray
    sids: np.ndarray
    eligible_sids: np.ndarray
    accepted: np.ndarray
    starts: np.ndarray

    @property
    def generated(self) -> np.ndarray:
        """int64 [R], ads before the filter."""
        return self.stages[:, 0]

    def take(self, rows: np.ndarray) -> Outcome:
        """The outcome of some requests, bool [R]."""
        parts = (self.stages, self.sids, self.eligible_sids)
        return Outcome(*(part[rows] for part in parts), self.accepted, self.starts[rows])

    def accepted_first(self, limit: np.ndarray) -> np.ndarray:
        """int64 [R], accepted ads among the first `limit` of each request, in order of score."""
        return self.accepted[self.starts + limit] - self.accepted[self.starts]


def count(leaves: np.ndarray, generated: Generated, passed: Passed) -> Outcome:
    """Count one mode's ads per request, without a loop over them."""
    num_requests, width = leaves.shape
    requests = generated.requests

    def per_request(flags: np.ndarray) -> np.ndarray:
        return np.bincount(requests[flags], minlength=num_requests)

    everything = np.ones(len(requests), bool)
    both = passed.bitmask & passed.bloom
    stages = [per_request(each) for each in (everything, passed.bitmask, both, passed.final)]
    eligible = np.zeros((num_requests, width), bool)
    eligible[requests[passed.final], generated.slots[passed.final]] = True
    return Outcome(
        stages=np.stack(stages, 1),
        sids=(leaves >= 0).sum(1),
        eligible_sids=eligible.sum(1),
        accepted=np.r_[0, np.cumsum(passed.final)],
        starts=generated.offsets[:-1],
    )


@dataclass(frozen=True)
class Bucket:
    """Requests that generated about as many ads, and what became of these: a line of Table 3.

    Attributes:
        users: requests, and `user_share` their share of all.
        stages: int64 [4], ads generated; accepted by their own bitmask; of these, by their own
            Bloom filter; by the exact filter.
    """

    users: int
    user_share: float
    stages: np.ndarray

    @property
    def rates(self) -> dict[str, float]:
        """Pass rates by metric; without those that have nothing to divide by.

        Ads are pooled over requests, and Bloom's rate is a share of what the bitmask passed. The
        paper's figures are of this kind: its two stages multiply to its final rate.
        """
        generated, bitmask, both, final = self.stages.tolist()
        pairs = {
            "bitmask_pass_rate": (bitmask, generated),
            "bloom_pass_rate": (both, bitmask),
            "own_rows_pass_rate": (both, generated),
            "pass_rate": (final, generated),
        }
        return {metric: passed / of for metric, (passed, of) in pairs.items() if of}


def buckets(outcome: Outcome, bounds: tuple[int, ...] = PAPER_BOUNDS) -> dict[str, Bucket]:
    """Requests by the number of ads that they generated; the labels are those of the paper.

    Args:
        outcome: one mode's.
        bounds: ascending; bucket i holds `bounds[i - 1] <= generated < bounds[i]`.
    """
    bucket = np.searchsorted(bounds, outcome.generated, side="right")
    found = {}
    for i, label in enumerate(bucket_labels(bounds)):
        chosen = bucket == i
        share = float(chosen.mean()) if len(chosen) else 0.0
        found[label] = Bucket(int(chosen.sum()), share, outcome.stages[chosen].sum(0))
    return found


def equal_ads(outcomes: dict[str, Outcome]) -> tuple[np.ndarray, dict[str, Estimate]]:
    """The control: every mode's list cut, in order of score, where the shortest one ends.

    Returns:
        int64 [R], ads left of each request, and by mode the pooled pass rate among them.
    """
    limit = np.min([outcome.generated for outcome in outcomes.values()], axis=0)
    rates = {
        mode: bootstrap(outcome.accepted_first(limit), limit) for mode, outcome in outcomes.items()
    }
    return limit, rates
