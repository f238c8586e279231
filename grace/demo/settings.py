"""What the demo runs with."""

from __future__ import annotations

from dataclasses import dataclass, field

from grace.decode import BeamPlan
from grace.train import RunConfig


@dataclass(frozen=True, kw_only=True)
class DemoSettings:
    """What the demo runs with.

    Attributes:
        seeds: each deals the rules anew and trains a model of its own. The folder keeps the index
            and the model of the first.
        levels: L, tokens of a SID.
        codes: V, codes per level.
        plan: beams of all modes alike, far fewer than there are SIDs.
        ks: places at which recall is taken.
        run: the model's sizes and how it is trained; the seed is replaced.
        single_requests: requests that are answered one at a time, for funnel and latencies.
        checked_requests: requests that are compared with brute force.
        processes: seeds that run at the same time, each in one thread; None is one a core.
    """

    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    levels: int = 3
    codes: int = 64
    plan: BeamPlan = field(default_factory=lambda: BeamPlan((1, 32, 64), 64))
    ks: tuple[int, ...] = (10, 50)
    run: RunConfig = field(default_factory=RunConfig)
    single_requests: int = 200
    checked_requests: int = 3
    processes: int | None = None
