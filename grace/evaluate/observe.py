"""What one matching mode did with each request, as arrays: the raw material of every table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from grace.errors import RequestError
from grace.evaluate.passes import GENERATED, StageMasks, count_passes
from grace.index import Index
from grace.retrieve import Result, Retriever

CALL = 64  # requests a call of the retriever, after which progress moves


@dataclass(frozen=True)
class Targets:
    """The held-out ads.

    Attributes:
        positions: int64 `[n]`, ad positions in the index; -1 where the catalogue lacks the ad.
        eligible: bool `[n]`, whether the request may see the ad.
    """

    positions: np.ndarray
    eligible: np.ndarray


@dataclass(frozen=True)
class Observations:
    """One mode's answers, a row per request. Rows that failed hold zeros.

    Attributes:
        errors: by row, the error of a request that failed.
        rank: int64 `[n]`, place of the held-out ad among returned ads; 1 is first, 0 not returned.
        sid_rank: int64 `[n]`, the same for its SID among generated SIDs.
        generated_sids: int64 `[n]`, as are `eligible_sids` and `returned_ads`.
        live: int64 `[n, L]`, beams that enter each step; `wasted` are those of them without any
            eligible ad below.
        passes: int64 `[n, 6]`, of `count_passes` over all generated ads.
        accepted_first: int64 `[n, F]`, accepted ads among the first generated ones, by `sizes`.
    """

    errors: dict[int, dict[str, str]]
    rank: np.ndarray
    sid_rank: np.ndarray
    generated_sids: np.ndarray
    eligible_sids: np.ndarray
    returned_ads: np.ndarray
    live: np.ndarray
    wasted: np.ndarray
    passes: np.ndarray
    accepted_first: np.ndarray

    @property
    def generated_ads(self) -> np.ndarray:
        """int64 `[n]`, ads before the last filter."""
        return self.passes[:, GENERATED]

    def take(self, rows: np.ndarray) -> Observations:
        """The observations of some rows, by index or bool mask, none of which failed."""
        arrays = {name: value[rows] for name, value in vars(self).items() if name != "errors"}
        return Observations(errors={}, **arrays)


def find_targets(index: Index, requests: Sequence[dict], ad_ids: Sequence[object]) -> Targets:
    """Where the held-out ads stand and whether their requests may see them.

    An ad that is not in the catalogue counts as not eligible, and so does the target of a request
    whose attributes are wrong, which fails in retrieval as well.

    Args:
        requests: with `at` set.
        ad_ids: the held-out ad of each request.
    """
    positions = index.find_ads(ad_ids)
    eligible = np.zeros(len(requests), bool)
    for row in np.flatnonzero(positions >= 0):
        try:
            targeting = index.compile(requests[row].get("attributes"), requests[row]["at"])
        except RequestError:
            continue
        eligible[row] = index.explain(positions[row : row + 1], targeting)[0] == 0
    return Targets(positions, eligible)


def observe(
    index: Index,
    retriever: Retriever,
    requests: Sequence[dict],
    targets: Targets,
    sizes: Sequence[int],
    advance: Callable[[int], None] = lambda n: None,
) -> Observations:
    """Retrieve for every request and explain every generated ad.

    Args:
        requests: with `at` set, so that retrieval and explanation speak of the same moment.
        sizes: for `Observations.accepted_first`.
        advance: called with the number of requests done since the last call.
    """
    n, steps = len(requests), index.num_levels
    scalars = ("rank", "sid_rank", "generated_sids", "eligible_sids", "returned_ads")
    seen = Observations(
        errors={},
        **{name: np.zeros(n, np.int64) for name in scalars},
        live=np.zeros((n, steps), np.int64),
        wasted=np.zeros((n, steps), np.int64),
        passes=np.zeros((n, 6), np.int64),
        accepted_first=np.zeros((n, len(sizes)), np.int64),
    )
    stages = StageMasks.of(index.schema.attributes)
    for start in range(0, n, CALL):
        batch = requests[start : start + CALL]
        for row, result in enumerate(retriever.retrieve(batch, trace=True), start):
            if result.error is not None:
                seen.errors[row] = result.error
                continue
            targeting = index.compile(requests[row].get("attributes"), requests[row]["at"])
            fail_masks = index.explain(generated_positions(index, result), targeting)
            seen.passes[row] = count_passes(fail_masks, stages)
            accepted = np.concatenate(([0], np.cumsum(fail_masks == 0)))
            seen.accepted_first[row] = accepted[np.minimum(sizes, len(fail_masks))]
            seen.generated_sids[row] = result.funnel["generated_sids"]
            seen.eligible_sids[row] = result.funnel["eligible_sids"]
            seen.returned_ads[row] = len(result.ads)
            seen.live[row] = [step.live for step in result.trace.steps]
            seen.wasted[row] = [step.wasted for step in result.trace.steps]
            seen.rank[row], seen.sid_rank[row] = find_ranks(index, result, targets.positions[row])
        advance(len(batch))
    return seen


def generated_positions(index: Index, result: Result) -> np.ndarray:
    """Positions of all ads of the generated SIDs, in order of SID, int64 `[n]`.

    SIDs that are not in the catalogue (mode `off`) have no ads.
    """
    sids = np.array([sid for sid, _ in result.sids], np.int64).reshape(-1, index.num_levels)
    known = [sid for sid in index.find_sids(sids).tolist() if sid >= 0]
    return np.concatenate([np.arange(*index.sid_ads(sid)) for sid in known] or [np.arange(0)])


def find_ranks(index: Index, result: Result, position: int) -> tuple[int, int]:
    """Places of an ad among the returned ads and of its SID among the generated SIDs, 0 if none."""
    if position < 0:
        return 0, 0
    ad_id, sid = index.ad_id(position), tuple(index.sids[index.ad_sid[position]].tolist())
    ad_ranks = (rank for rank, ad in enumerate(result.ads, 1) if ad.ad_id == ad_id)
    sid_ranks = (rank for rank, (other, _) in enumerate(result.sids, 1) if tuple(other) == sid)
    return next(ad_ranks, 0), next(sid_ranks, 0)
