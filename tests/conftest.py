"""Hypothesis profiles and shared options.

GRACE_TEST_EXAMPLES: examples per property, default 20. Setting it also draws new examples each run;
without it the examples are the same on every run and machine.
"""

from __future__ import annotations

import os

import pytest
import torch
from hypothesis import HealthCheck, settings

EXAMPLES = os.environ.get("GRACE_TEST_EXAMPLES")

settings.register_profile(
    "grace",
    max_examples=int(EXAMPLES or 20),
    derandomize=EXAMPLES is None,
    database=None,
    deadline=None,
    print_blob=EXAMPLES is not None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("grace")

# Models in tests are tiny; on a busy machine two threads wait for each other at every operation.
torch.set_num_threads(1)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "slow: above a minute; `-m 'not slow'` leaves it out")
