"""Engines for the tests of the server."""

import pytest
from starlette.testclient import TestClient
from web_cases import config, small_engine

from grace.serve.app import build_app


@pytest.fixture(scope="module")
def shared():
    """An engine and its model, for tests that leave both as they were."""
    engine, model = small_engine()
    yield engine, model
    assert engine.drain(20)


@pytest.fixture(scope="module")
def client(shared):
    """A client of the shared engine's application."""
    return TestClient(build_app(shared[0], config()), raise_server_exceptions=False)


@pytest.fixture
def own(request):
    """An engine of one's own and its model; indirect parameters are its options."""
    engine, model = small_engine(**getattr(request, "param", {}))
    yield engine, model
    model.gate.set()
    assert engine.drain(20)
