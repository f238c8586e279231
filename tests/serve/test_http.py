"""`/v1`: what the engine says comes through untouched; what is wrong gets its status and reason."""

import threading
from http.client import HTTPConnection

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.testclient import TestClient
from web_cases import REQUEST, config, served

from grace.serve.app import build_app
from grace.serve.health import why_not_ready
from grace.serve.models import (
    ErrorResponse,
    ModelInfo,
    RetrieveResponse,
    RetrieveResponses,
)

JSON = {"content-type": "application/json"}


def post(client, content, **headers):
    return client.post("/v1/retrieve", content=content, headers=JSON | headers)


def check_error(response, status: int, field: str, message: str = "") -> None:
    assert response.status_code == status, response.text
    error = ErrorResponse.model_validate_json(response.content).error
    assert error.field == field
    assert message in error.message
    assert error.request_id == response.headers["x-request-id"]


def test_an_answer_is_what_the_engine_wrote(client, shared):
    response = client.post("/v1/retrieve", json=REQUEST)
    assert response.status_code == 200
    assert response.headers["content-type"] == "application/json"
    assert response.content == shared[0].submit(REQUEST).future.result(20).to_json()
    body = RetrieveResponse.model_validate_json(response.content)
    assert body.id == "r1"
    assert len(body.ads) == body.funnel.returned_ads > 0


def test_several_requests_are_answered_in_order_and_fail_alone(client):
    wrong = {"id": "w", "attributes": {"age": "old"}}
    young = REQUEST | {"id": 2, "attributes": {"age": 3}}
    response = client.post("/v1/retrieve", json={"requests": [REQUEST, wrong, young]})
    assert response.status_code == 200
    first, second, third = RetrieveResponses.model_validate_json(response.content).responses
    assert [first.id, second.id, third.id] == ["r1", "w", 2]
    assert second.error.field == "attributes.age"
    assert first.ads
    assert {ad.ad_id % 3 for ad in third.ads} <= {0}


@pytest.mark.parametrize(
    ("body", "field", "message"),
    [
        ("[1, 2]", "request", "expected an object"),
        ('{"id": "a", "attributes": {"age": "x"}}', "attributes.age", "expected a number"),
        ('{"id": "a", "atributes": {}}', "atributes", "unknown key"),
        ('{"attributes": {}}', "id", "expected a string or an integer"),
        ('{"id": "\\ud800"}', "id", "UTF-8"),
        ('{"id": 1, "\\ud800": 2}', "\\ud800", "unknown key"),
        ('{"id": 1, "id": 2}', "body", "twice"),
        ('{"requests": []}', "requests", "1 to 32 requests, got 0"),
        ('{"requests": {}}', "requests", "1 to 32 requests, got {}"),
        ('{"requests": [1]}', "requests[0]", "expected an object"),
        ('{"requests": [], "id": 1}', "id", "unknown key"),
        ('{"requests": [' + ",".join(["{}"] * 33) + "]}", "requests", "got 33"),
        ('{"id": ' + "[" * 40 + "]" * 40 + "}", "body", "nested deeper than 16"),
        ('{"id": 1, "top_k": ' + "9" * 5000 + "}", "body", "64 bits"),
        ('{"id": 1, "attributes": {"age": NaN}}', "body", "finite"),
        ("", "body", "not JSON"),
    ],
)
def test_a_wrong_body_is_400_and_names_the_field(client, body, field, message):
    check_error(post(client, body), 400, field, message)


@given(st.binary(max_size=80) | st.text(max_size=40).map(lambda t: f'{{"id": {t!r}}}'.encode()))
def test_no_bytes_make_the_server_fail(client, body):
    response = post(client, body)
    assert response.status_code in (200, 400)
    assert response.headers["content-type"] == "application/json"


@pytest.mark.parametrize(
    ("headers", "field"),
    [
        ({"content-type": "text/plain"}, "content-type"),
        ({"content-type": "application/x-www-form-urlencoded"}, "content-type"),
        ({"content-type": "application/json; charset=latin-1"}, "content-type"),
        ({"content-encoding": "gzip"}, "content-encoding"),
    ],
)
def test_another_kind_of_body_is_415(client, headers, field):
    check_error(post(client, b"{}", **headers), 415, field)


def test_json_may_say_that_it_is_utf8(client):
    assert post(
        client, b'{"id": 1}', **{"content-type": 'Application/JSON; charset="UTF-8"'}
    ).is_success


def test_a_large_body_is_413_whether_or_not_it_says_so(client):
    big = b'{"id": "' + b"x" * 10_000_000 + b'"}'
    check_error(post(client, big), 413, "body", "at most 1,048,576 bytes")
    chunks = (big[i : i + 65_536] for i in range(0, len(big), 65_536))
    check_error(post(client, chunks), 413, "body")


@pytest.mark.parametrize(
    "value", ["0", "-1", "nan", "inf", "600001", "soon", "", "1_000", "1e3", "+9", "1.", "0x9"]
)
def test_a_wrong_timeout_is_400(client, value):
    check_error(post(client, b'{"id": 1}', **{"x-timeout-ms": value}), 400, "x-timeout-ms")


def test_errors_below_v2_are_texts_as_its_protocol_has_them(client):
    response = client.get("/v2/nothing")
    assert response.json() == {"error": "path: there is no such page; /docs lists them"}


def test_other_paths_and_methods(client):
    check_error(client.get("/nothing"), 404, "path")
    check_error(client.get("/v1/retrieve/"), 404, "path")
    check_error(client.get("/v1/retrieve"), 405, "method", "POST")
    assert client.get("/v1/retrieve").headers["allow"] == "POST"


@pytest.mark.parametrize(
    ("given", "taken"),
    [("abc-1", True), ("x" * 128, True), ("x" * 129, False), ("a b", False), ("é", False)],
)
def test_a_request_id_is_taken_over_if_it_can_be(client, given, taken):
    name = given.encode("latin-1")
    response = client.get("/v1/health/live", headers=[(b"x-request-id", name)])
    assert (response.headers["x-request-id"] == given) is taken
    assert response.headers["x-request-id"].isascii()


def test_the_model_page_says_what_answers(client):
    response = client.get("/v1/model")
    info = ModelInfo.model_validate_json(response.content)
    assert (info.ads, info.levels, info.vocab_size, info.matching) == (125, 3, 5, "exact")
    assert [a.name for a in info.attributes] == ["age", "gender", "place"]
    assert info.plan.widths == [1, 4, 8]


@pytest.mark.parametrize("own", [{"max_admitted": 32}], indirect=True)
def test_a_full_queue_is_429_at_once_and_admits_all_or_none(own):
    engine, model = own
    client = TestClient(build_app(engine, config(batching={"max_admitted": 32})))
    model.gate.clear()
    held = [engine.submit(REQUEST) for _ in range(20)]  # up to 16 of them in a batch
    response = client.post("/v1/retrieve", json={"requests": [REQUEST] * 32})
    check_error(response, 429, "server")
    assert int(response.headers["retry-after"]) >= 1
    model.gate.set()
    assert all(ticket.future.result(20).error is None for ticket in held)
    response = client.post("/v1/retrieve", json={"requests": [REQUEST] * 8})
    assert response.status_code == 200


def test_a_deadline_is_504_whether_the_batch_has_begun_or_not(own):
    engine, model = own
    client = TestClient(build_app(engine, config()))
    model.gate.clear()
    for _ in range(2):  # the first reaches the model, the second waits behind it
        response = post(client, b'{"id": 1}', **{"x-timeout-ms": "40"})
        check_error(response, 504, "server", "deadline")
    body = b'{"requests": [{"id": 1}, {"id": "\\ud800"}]}'
    response = post(client, body, **{"x-timeout-ms": "40"})
    assert [part["error"]["field"] for part in response.json()["responses"]] == ["server"] * 2
    model.gate.set()
    assert post(client, b'{"id": 1}').status_code == 200


def test_a_fault_inside_is_500_with_an_id_and_nothing_else(own, caplog):
    engine, model = own
    client = TestClient(build_app(engine, config()), raise_server_exceptions=False)
    model.fault = RuntimeError("secret /etc/passwd")
    response = client.post("/v1/retrieve", json=REQUEST)
    check_error(response, 500, "server", "the log has it under this id")
    many = client.post("/v1/retrieve", json={"requests": [REQUEST, REQUEST]})
    assert "secret" not in response.text + many.text
    assert many.status_code == 200
    logged = [r for r in caplog.records if r.message == "unexpected fault"]
    assert {r.fields["request_id"] for r in logged} == {
        response.headers["x-request-id"], many.headers["x-request-id"],
    }  # fmt: skip


def test_a_draining_engine_is_alive_not_ready_and_503(own):
    engine, _ = own
    client = TestClient(build_app(engine, config()))
    assert client.get("/v1/health/ready").json() == {"ready": True}
    engine.drain(20)
    assert client.get("/v1/health/live").status_code == 200
    ready = client.get("/v1/health/ready")
    assert (ready.status_code, ready.json()["ready"]) == (503, False)
    check_error(client.post("/v1/retrieve", json=REQUEST), 503, "server")


def test_a_device_that_can_compute_no_more_is_not_ready():
    class Broken:
        def status(self):
            return {"draining": False, "failed": "OutOfMemoryError: no memory for /a/b"}

    assert why_not_ready(Broken()) == "the device can compute no more"


def test_a_client_that_goes_frees_its_place(own):
    engine, model = own
    app = build_app(engine, config())
    model.gate.clear()
    with served(app, config()) as port:
        busy = engine.submit(REQUEST)  # the next ones wait behind it
        connections = []
        for _ in range(3):
            connection = HTTPConnection("127.0.0.1", port)
            connection.request("POST", "/v1/retrieve", '{"id": 1}', JSON)
            connections.append(connection)
        seen = threading.Event()
        metrics = app.state.observer.metrics
        count, metrics.count_refusal = (
            metrics.count_refusal,
            lambda reason: (count(reason), seen.set()),
        )
        connections[0].close()
        assert seen.wait(20)
        model.gate.set()
        assert busy.future.result(20).error is None
        for connection in connections[1:]:
            response = connection.getresponse()
            assert (response.status, bool(response.read())) == (200, True)
            connection.close()
    assert b'grace_refusals_total{reason="client_gone"} 1.0' in metrics.render()[0]
    assert b'grace_requests_total{outcome="ok"} 3.0' in metrics.render()[0]
