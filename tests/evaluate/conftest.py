"""One random catalogue with every kind of rule, and requests with held-out ads."""

from __future__ import annotations

import random

import harness
import pytest
from strategies import Case

import grace

UNKNOWN_AD = 10**9


@pytest.fixture(scope="session")
def case() -> Case:
    return Case(
        seed=5, num_levels=3, vocab=6, num_ads=150, rule_rate=0.25, num_requests=40, num_places=8
    )


@pytest.fixture(scope="session")
def requests(case) -> list[dict]:
    """The case's requests; the catalogue lacks the target of every seventh."""
    draw = random.Random("targets")
    return [
        request | {"target": UNKNOWN_AD if number % 7 == 3 else draw.choice(case.ads)["ad_id"]}
        for number, request in enumerate(case.requests)
    ]


@pytest.fixture(scope="session")
def index(case) -> grace.Index:
    return harness.build(case)


@pytest.fixture(scope="session")
def plan() -> grace.BeamPlan:
    return grace.BeamPlan((1, 4, 8), 8)
