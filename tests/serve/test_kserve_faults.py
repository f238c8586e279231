"""What goes wrong on the way: refusals, deadlines, clients that leave, tokens, other bodies."""

import asyncio
import http.client
import json
import os
import signal
import socket
import threading
import time

import grpc
import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http
import trustme
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status
from grpc_health.v1 import health_pb2, health_pb2_grpc
from hypothesis import given
from hypothesis import strategies as st
from kserve_cases import (
    REQUESTS,
    Model,
    as_texts,
    expected,
    free_port,
    make_config,
    make_engine,
    make_index,
    serving,
)
from tritonclient.utils import InferenceServerException
from web_cases import REQUEST, save_artefacts

import grace
from grace.errors import ConfigError, RequestError
from grace.serve.calls import Observer
from grace.serve.config import TelemetryConfig
from grace.serve.config_file import make_config as from_tables
from grace.serve.kserve import infer
from grace.serve.kserve.grpc import read_inputs, start_server
from grace.serve.kserve.protos import grpc_predict_v2_pb2 as pb
from grace.serve.kserve.protos import grpc_predict_v2_pb2_grpc as pb_grpc
from grace.serve.metrics import Metrics
from grace.serve.security import Tokens
from grace.serve.server import serve

HOST = "127.0.0.1"  # as whom a client without a name is known; another one would get a place


class GatedModel(Model):
    """Waits in `start` until the test opens the gate; notes which requests it saw."""

    def __init__(self):
        self.gate, self.entered, self.seen = threading.Event(), threading.Event(), []

    def start(self, features):
        self.seen += [f.get("taste") for f in features]
        self.entered.set()
        assert self.gate.wait(30)
        return super().start(features)


class BrokenModel(Model):
    def start(self, features):
        raise RuntimeError("secret path /etc/passwd")


@pytest.fixture(scope="module")
def index():
    return make_index()


@pytest.fixture
def gated(index):
    """A server whose engine takes one request at a time and holds two more behind it."""
    model = GatedModel()
    engine = make_engine(index, model, max_batch=1, max_admitted=3, contexts=1)
    with serving(engine, make_config(max_requests=2)) as (http_url, grpc_url):
        yield model, engine, http_url, grpc_url
        model.gate.set()
        assert engine.drain(10)


@pytest.fixture
def plain(index):
    engine = make_engine(index)
    with serving(engine, make_config()) as (http_url, grpc_url):
        yield engine, http_url, grpc_url
        engine.drain(10)


def grpc_request(requests=REQUESTS[:1], **fields):
    request = pb.ModelInferRequest(model_name="grace", **fields)
    tensor = request.inputs.add(name="request", datatype="BYTES", shape=[len(requests)])
    tensor.contents.bytes_contents.extend(as_texts(requests))
    return request


def infer_grpc(url, request, **options):
    with grpc.insecure_channel(url) as channel:
        return pb_grpc.GRPCInferenceServiceStub(channel).ModelInfer(request, **options)


def http_body(requests=REQUESTS[:1], **call):
    data = [text.decode() for text in as_texts(requests)]
    tensor = {"name": "request", "shape": [len(data)], "datatype": "BYTES", "data": data}
    return json.dumps({"inputs": [tensor], **call}).encode()


def post(url, body, headers=None, path="/v2/models/grace/infer"):
    connection = http.client.HTTPConnection(url, timeout=20)
    try:
        connection.request("POST", path, body, headers or {})
        response = connection.getresponse()
        return response, json.loads(response.read() or b"null")
    finally:
        connection.close()


def fill(engine, model):
    """Occupy the engine: one request in the model, and as many as it may hold behind it."""
    tickets = [engine.submit(REQUESTS[0], client=HOST, timeout_ms=60_000)]
    assert model.entered.wait(10)
    tickets += [engine.submit(REQUESTS[0], client=HOST, timeout_ms=60_000) for _ in range(2)]
    return tickets


def wait_until(condition):
    for _ in range(2000):
        if condition():
            return
        time.sleep(0.005)
    raise AssertionError("it never came true")


def test_a_full_engine_refuses_at_once_and_says_when_to_come_back(gated):
    model, engine, http_url, grpc_url = gated
    tickets = fill(engine, model)
    response, answer = post(http_url, http_body())
    assert response.status == 429
    assert int(response.headers["Retry-After"]) >= 1
    assert "most allowed" in answer["error"]
    with pytest.raises(grpc.RpcError) as caught:
        infer_grpc(grpc_url, grpc_request())
    assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    trailer = dict(caught.value.trailing_metadata())
    status, retry = Status.FromString(trailer["grpc-status-details-bin"]), RetryInfo()
    assert status.details[0].Unpack(retry)
    assert 0 < retry.retry_delay.ToMilliseconds() == int(trailer["grpc-retry-pushback-ms"])
    model.gate.set()
    assert all(ticket.future.result(10).error is None for ticket in tickets)


def test_a_call_that_is_admitted_in_part_leaves_nothing_behind(gated):
    model, engine, http_url, _ = gated
    first = engine.submit({"id": 1, "features": {"taste": 100}}, client=HOST, timeout_ms=60_000)
    assert model.entered.wait(10)
    one = engine.submit({"id": 2, "features": {"taste": 101}}, client=HOST, timeout_ms=60_000)
    requests = [{"id": i, "features": {"taste": i}} for i in range(2)]
    response, _ = post(http_url, http_body(requests))
    assert response.status == 429
    model.gate.set()
    assert first.future.result(10).error is one.future.result(10).error is None
    assert engine.drain(10)
    assert model.seen == [100, 101]


def test_more_requests_than_the_engine_ever_holds_are_wrong_not_unlucky(gated):
    _, _, http_url, _ = gated
    response, answer = post(http_url, http_body(REQUESTS[:3]))
    assert response.status == 400
    assert "expected 1 to 2" in answer["error"]


def test_a_deadline_that_passes_in_the_queue_is_told(gated):
    model, engine, http_url, grpc_url = gated
    first = engine.submit(REQUESTS[0], client=HOST, timeout_ms=60_000)
    assert model.entered.wait(10)
    assert post(http_url, http_body(parameters={"timeout": 2000}))[0].status == 504
    request = grpc_request()
    request.parameters["timeout"].int64_param = 2000
    with pytest.raises(grpc.RpcError) as caught:
        infer_grpc(grpc_url, request)
    assert caught.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
    model.gate.set()
    assert first.future.result(10).error is None
    assert engine.drain(10)
    assert len(model.seen) == 1


def test_the_deadline_of_the_rpc_is_the_requests(gated, monkeypatch):
    model, engine, http_url, grpc_url = gated
    given_ms = []
    submit = engine.submit_all
    monkeypatch.setattr(
        engine, "submit_all", lambda r, c, t: given_ms.append(t) or submit(r, c, t)
    )  # fmt: skip
    model.gate.set()
    infer_grpc(grpc_url, grpc_request(), timeout=20)
    infer_grpc(grpc_url, grpc_request())
    request = grpc_request()
    request.parameters["timeout"].int64_param = 7_000_000
    infer_grpc(grpc_url, request, timeout=20)
    post(http_url, http_body(), {"x-timeout-ms": "6000"})
    post(http_url, http_body(parameters={"timeout": 5_000_000}), {"x-timeout-ms": "6000"})
    assert 10_000 < given_ms[0] < 21_000  # the transport adds a little
    assert given_ms[1:] == [engine.options.timeout_ms, 7000, 6000, 5000]
    response, answer = post(http_url, http_body(), {"x-timeout-ms": "-1"})
    assert response.status == 400
    assert "x-timeout-ms" in answer["error"]


def test_a_client_that_leaves_takes_its_requests_along(gated):
    model, engine, http_url, grpc_url = gated
    first = engine.submit({"id": 1, "features": {"taste": 100}}, client=HOST, timeout_ms=60_000)
    assert model.entered.wait(10)
    body = http_body([{"id": 2, "features": {"taste": 2}}])
    host, port = http_url.split(":")
    leaver = socket.create_connection((host, int(port)))
    head = f"POST /v2/models/grace/infer HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
    leaver.sendall(head.encode() + body)
    with grpc.insecure_channel(grpc_url) as channel:
        stub = pb_grpc.GRPCInferenceServiceStub(channel)
        call = stub.ModelInfer.future(grpc_request([{"id": 3, "features": {"taste": 3}}]))
        wait_until(lambda: engine.status()["admitted"] == 3)
        leaver.close()
        call.cancel()
        wait_until(lambda: engine.status()["admitted"] == 1)
    model.gate.set()
    assert first.future.result(10).error is None
    assert engine.drain(10)
    assert model.seen == [100]


def test_while_draining_nothing_is_ready_and_calls_are_unavailable(plain):
    engine, http_url, grpc_url = plain
    with grpc.insecure_channel(grpc_url) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        stub = pb_grpc.GRPCInferenceServiceStub(channel)
        named = health_pb2.HealthCheckRequest(service="inference.GRPCInferenceService")
        assert health.Check(named).status == health_pb2.HealthCheckResponse.SERVING
        with pytest.raises(grpc.RpcError, match="no such service"):
            health.Check(health_pb2.HealthCheckRequest(service="else"))
        engine.drain(10)
        assert health.Check(named).status == health_pb2.HealthCheckResponse.NOT_SERVING
        assert stub.ServerLive(pb.ServerLiveRequest()).live
        assert not stub.ServerReady(pb.ServerReadyRequest()).ready
        assert not stub.ModelReady(pb.ModelReadyRequest(name="grace")).ready
        with pytest.raises(grpc.RpcError) as caught:
            stub.ModelInfer(grpc_request())
    assert caught.value.code() == grpc.StatusCode.UNAVAILABLE
    assert post(http_url, http_body())[0].status == 503
    with triton_http.InferenceServerClient(http_url) as client:
        assert client.is_server_live()
        assert not client.is_server_ready()
        assert not client.is_model_ready("grace")


def test_a_fault_of_ours_tells_where_to_look_and_nothing_else(index, caplog):
    engine = make_engine(index, BrokenModel())
    with serving(engine, make_config()) as (http_url, grpc_url):
        response, answer = post(http_url, http_body(), {"x-request-id": "one"})
        with pytest.raises(grpc.RpcError) as caught:
            infer_grpc(grpc_url, grpc_request(), metadata=(("x-request-id", "two"),))
    assert response.status == 500
    assert response.headers["x-request-id"] == "one"
    assert caught.value.code() == grpc.StatusCode.INTERNAL
    assert dict(caught.value.trailing_metadata())["x-request-id"] == "two"
    assert "secret" not in answer["error"] + caught.value.details()
    logged = [record.fields["request_id"] for record in caplog.records if hasattr(record, "fields")]
    assert {"one", "two"} <= set(logged)
    engine.drain(10)


def test_calls_are_counted_by_method_and_code(plain):
    _, http_url, grpc_url = plain
    infer_grpc(grpc_url, grpc_request(REQUESTS))
    with pytest.raises(grpc.RpcError):
        infer_grpc(grpc_url, pb.ModelInferRequest(model_name="grice"))
    post(http_url, http_body())
    connection = http.client.HTTPConnection(http_url)
    connection.request("GET", "/metrics")
    text = connection.getresponse().read().decode()
    connection.close()
    rpc = 'protocol="grpc",route="inference.GRPCInferenceService/ModelInfer"'
    assert f'grace_calls_total{{{rpc},status="OK"}} 1.0' in text
    assert f'grace_calls_total{{{rpc},status="NOT_FOUND"}} 1.0' in text
    assert 'route="POST /v2/models/{model}/infer",status="200"} 1.0' in text
    assert 'grace_requests_total{outcome="ok"} 5.0' in text


def test_bodies_are_limited_on_both_transports(index):
    engine = make_engine(index)
    with serving(engine, make_config(max_body_bytes=2000)) as (http_url, grpc_url):
        large = [{"id": "x" * 3000}]
        assert post(http_url, http_body(large))[0].status == 413
        with pytest.raises(grpc.RpcError) as caught:
            infer_grpc(grpc_url, grpc_request(large))
        assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        chunks = iter([b"x" * 1500] * 4)
        assert post(http_url, chunks)[0].status == 413
        assert post(http_url, http_body())[0].status == 200
    engine.drain(10)


@pytest.mark.parametrize(
    ("body", "headers"),
    [
        (b"", {}),
        (b"\xff\xfe", {}),
        (b"[" * 100_000, {}),
        (b'{"inputs": ' * 500, {}),
        (http_body()[:-1], {}),
        (http_body(priority=1), {}),
        (http_body(id=7), {}),
        (http_body(outputs=[{"name": "scores"}] * 2), {}),
        (http_body(outputs=[{"name": "scores", "parameters": {"classification": 2}}]), {}),
        (http_body(parameters={"binary_data_output": "yes"}), {}),
        (http_body(), {"Inference-Header-Content-Length": "1000000"}),
        (http_body(), {"Content-Encoding": "br"}),
        (http_body(), {"Content-Encoding": "gzip"}),
    ],
)
def test_other_bodies_are_400_with_a_reason(plain, body, headers):
    response, answer = post(plain[1], body, headers)
    assert response.status == 400
    assert answer["error"]


VALUES = st.builds(
    pb.InferTensorContents,
    bytes_contents=st.lists(st.binary(max_size=9), max_size=3),
    int64_contents=st.lists(st.integers(-(2**63), 2**63 - 1), max_size=2),
    int_contents=st.lists(st.integers(-(2**31), 2**31 - 1), max_size=2),
)
GRPC_INPUTS = st.builds(
    pb.ModelInferRequest.InferInputTensor,
    name=st.sampled_from(["request", "id", "features", "at", "top_k", "other"]),
    datatype=st.sampled_from(["BYTES", "INT64", "INT8", "BOOL", "FP32", "odd", ""]),
    shape=st.lists(st.integers(-(2**63), 2**63 - 1) | st.integers(0, 3), max_size=9),
    contents=st.none() | VALUES,
)


@given(
    st.lists(GRPC_INPUTS, max_size=3),
    st.lists(st.binary(max_size=20), max_size=3),
    st.dictionaries(st.sampled_from(["top_k", "timeout", "odd"]), st.integers(-(2**63), 2**63 - 1)),
)
def test_any_message_is_read_or_refused(inputs, raw, parameters):
    request = pb.ModelInferRequest(inputs=inputs, raw_input_contents=raw)
    try:
        requests = infer.read_requests(read_inputs(request), parameters, 4, 16)
    except RequestError:
        return
    assert all(isinstance(each, dict | RequestError) for each in requests)


@pytest.mark.parametrize(
    "method", ["inference.GRPCInferenceService/ModelInfer", "grpc.health.v1.Health/Check"]
)
def test_bytes_that_are_no_message_are_invalid(plain, method):
    with grpc.insecure_channel(plain[2]) as channel, pytest.raises(grpc.RpcError) as caught:
        channel.unary_unary(f"/{method}")(b"\xff\xff\xff", timeout=20)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert caught.value.details().startswith("body: expected the message of this method")
    assert "Error" not in caught.value.details()


def test_contents_and_raw_contents_say_the_same_but_not_together(plain, index):
    _, _, url = plain
    by_contents = infer_grpc(url, grpc_request(REQUESTS))
    raw = grpc_request(REQUESTS)
    raw.inputs[0].ClearField("contents")
    texts = as_texts(REQUESTS)
    raw.raw_input_contents.append(b"".join(len(t).to_bytes(4, "little") + t for t in texts))
    assert infer_grpc(url, raw) == by_contents
    counts = np.frombuffer(by_contents.raw_output_contents[3], np.int64)
    assert counts.tolist() == [len(w.ads) for w in expected(index, REQUESTS)]
    raw.inputs[0].contents.bytes_contents.append(b"{}")
    for request, message in [
        (raw, "contents beside raw_input_contents"),
        (
            pb.ModelInferRequest(model_name="grace", raw_input_contents=[b""]),
            "each of 0 inputs, got 1",
        ),
    ]:
        with pytest.raises(grpc.RpcError, match=message) as caught:
            infer_grpc(url, request)
        assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT


TOKEN = "a-token-of-some-length"


def test_data_needs_a_token_where_tokens_are_set_and_health_does_not(index, monkeypatch):
    engine = make_engine(index)
    clients = []
    submit = engine.submit_all
    monkeypatch.setattr(engine, "submit_all", lambda r, c, t: clients.append(c) or submit(r, c, t))
    with serving(engine, make_config(), Tokens({TOKEN: "ann"})) as (http_url, grpc_url):
        for header in (None, "Bearer other"):
            sent = {} if header is None else {"authorization": header}
            response, _ = post(http_url, http_body(), sent)
            assert response.status == 401
            assert response.headers["WWW-Authenticate"] == "Bearer"
            with pytest.raises(grpc.RpcError) as caught:
                infer_grpc(grpc_url, grpc_request(), metadata=tuple(sent.items()))
            assert caught.value.code() == grpc.StatusCode.UNAUTHENTICATED
        sent = {"authorization": f"Bearer {TOKEN}"}
        assert post(http_url, http_body(), sent)[0].status == 200
        infer_grpc(grpc_url, grpc_request(), metadata=tuple(sent.items()))
        with triton_grpc.InferenceServerClient(grpc_url) as client:
            assert client.is_server_ready()
            with pytest.raises(InferenceServerException, match="token"):
                client.get_model_metadata("grace")
    assert clients == ["ann", "ann"]
    engine.drain(10)


def test_without_tokens_a_client_names_itself_or_is_its_address(plain, monkeypatch):
    engine, http_url, grpc_url = plain
    clients = []
    submit = engine.submit_all
    monkeypatch.setattr(engine, "submit_all", lambda r, c, t: clients.append(c) or submit(r, c, t))
    post(http_url, http_body())
    post(http_url, http_body(), {"x-client-id": "shop"})
    infer_grpc(grpc_url, grpc_request())
    infer_grpc(grpc_url, grpc_request(), metadata=(("x-client-id", "shop"),))
    assert clients == ["127.0.0.1", "shop", "127.0.0.1", "shop"]


def test_grpc_over_tls_by_files(index, tmp_path):
    authority = trustme.CA()
    issued = authority.issue_cert("localhost")
    files = {name: str(tmp_path / f"{name}.pem") for name in ("tls_cert", "tls_key", "root")}
    issued.cert_chain_pems[0].write_to_path(files["tls_cert"])
    issued.private_key_pem.write_to_path(files["tls_key"])
    authority.cert_pem.write_to_path(files["root"])
    engine = make_engine(index)
    config = make_config(tls_cert=files["tls_cert"], tls_key=files["tls_key"])
    with serving(engine, config) as (_, url):
        with triton_grpc.InferenceServerClient(
            url.replace("127.0.0.1", "localhost"), ssl=True, root_certificates=files["root"]
        ) as client:
            assert client.is_model_ready("grace")
        with triton_grpc.InferenceServerClient(url) as client:
            assert not reachable(client)
    engine.drain(10)


def reachable(client):
    try:
        return client.is_server_live(client_timeout=5)
    except InferenceServerException:
        return False


def test_grace_serve_speaks_the_protocol_and_ends_cleanly(tmp_path):
    """The whole process, as a configuration makes it."""
    save_artefacts(tmp_path)
    ports = {"http": free_port(), "grpc": free_port()}
    config = from_tables({
        "index": {"directory": str(tmp_path / "index")},
        "model": {"directory": str(tmp_path / "model"), "name": "shop"},
        "http": {"port": ports["http"]}, "grpc": {"port": ports["grpc"]}, "admin": {"port": 0},
    })  # fmt: skip
    given = {}

    def ask(greeting: str):
        try:
            for name, module in (("http", triton_http), ("grpc", triton_grpc)):
                with module.InferenceServerClient(f"127.0.0.1:{ports[name]}") as client:
                    tensor = module.InferInput("request", [1], "BYTES")
                    tensor.set_data_from_numpy(np.array(as_texts([REQUEST]), np.object_))
                    given[name] = client.infer("shop", [tensor]).as_numpy("scores").tolist()
        finally:
            os.kill(os.getpid(), signal.SIGTERM)

    assert serve(config, lambda greeting: threading.Thread(target=ask, args=(greeting,)).start())
    wanted = grace.Retriever(grace.Index.open(tmp_path / "index"), str(tmp_path / "model"))
    scores = [ad.score for ad in wanted.retrieve([REQUEST])[0].ads]
    assert scores
    assert given["http"] == given["grpc"] == pytest.approx(scores)


def test_a_port_that_is_taken_and_a_missing_certificate_name_their_key(index):
    engine = make_engine(index)
    observer = Observer(TelemetryConfig(), Metrics(engine), None)
    config = make_config()
    with serving(engine, config), pytest.raises(ConfigError, match=r"grpc\.port"):
        asyncio.run(start_server(engine, config, observer))
    config = make_config(tls_cert="/nowhere/cert.pem", tls_key="/nowhere/key.pem")
    with pytest.raises(ConfigError, match=r"http\.tls_key: cannot be read"):
        asyncio.run(start_server(engine, config, observer))
    engine.drain(10)
