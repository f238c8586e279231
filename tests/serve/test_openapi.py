"""The description holds: requests that it generates get the replies that it promises."""

import re

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis import GenerationMode
from schemathesis.specs.openapi.checks import negative_data_rejection, positive_data_acceptance
from web_cases import REQUEST, config

from grace.serve.app import build_app
from grace.serve.openapi import describe_api

PATHS = ("/metrics", "/v1/health/live", "/v1/health/ready", "/v1/model", "/v1/retrieve")


@pytest.fixture(scope="module")
def api(shared):
    return schemathesis.openapi.from_asgi("/openapi.json", build_app(shared[0], config()))


@pytest.mark.parametrize("mode", list(GenerationMode), ids=lambda mode: mode.value)
@pytest.mark.parametrize("path", PATHS)
def test_replies_are_as_described(api, path, mode):
    (operation,) = api[path].values()
    if mode.is_negative and not (operation.body or operation.headers):
        return  # nothing in it could be wrong

    @settings(
        max_examples=30 if operation.body else 3, deadline=None, derandomize=True, database=None,
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(operation.as_strategy(generation_mode=mode))
    def check(case):
        # The schema cannot say what a time is, nor that JSON's integers end at 2^64 here.
        excluded = [positive_data_acceptance]
        if isinstance(case.body, dict) and "requests" in case.body:
            excluded.append(negative_data_rejection)  # each of several fails alone, within a 200
        response = case.call()
        if response.status_code != 504:  # a deadline of a few milliseconds may well pass
            case.validate_response(response, excluded_checks=excluded)

    check()


def test_it_knows_the_catalogue_and_the_limits(shared):
    described = describe_api(shared[0], config(http={"max_requests": 7}))
    schemas = described["components"]["schemas"]
    attributes = schemas["RetrieveRequest"]["properties"]["attributes"]["properties"]
    assert set(attributes) == {"age", "gender", "place"}
    assert schemas["RetrieveRequests"]["properties"]["requests"]["maxItems"] == 7
    assert "security" not in described
    guarded = describe_api(shared[0], config(http={"token_file": "t"}))
    assert guarded["security"] == [{"token": []}]
    assert guarded["paths"]["/v1/health/live"]["get"]["security"] == []


def test_every_route_of_ours_is_described(shared, client):
    described = describe_api(shared[0], config())["paths"]
    paths = {route.path for route in client.app.routes if route.path.startswith("/v1")}
    assert paths | {"/metrics"} == set(described) == set(PATHS)
    assert client.post("/v1/retrieve", json=REQUEST).status_code == 200


def test_the_page_loads_nothing(client):
    page = client.get("/docs")
    assert page.headers["content-type"].startswith("text/html")
    assert "/v1/retrieve" in page.text
    assert re.findall(r"<script|<link|<img|src=|https?://|@import|url\(", page.text) == []
