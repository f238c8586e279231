"""HTTP workers answer as the engine's own process does, and die alone."""

import contextlib
import gc
import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from http.client import HTTPSConnection
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tls_cases import issue
from web_cases import REQUEST, TOKEN, config, save_artefacts, served, small_engine
from worker_cases import await_that, children, exchange, worked

from grace.serve.app import build_app
from grace.serve.config import HttpConfig
from grace.serve.security import Tokens
from grace.serve.workers import worker_count
from grace.serve.workers.wire import Kind, Unpacker, pack, split

JSON = {"content-type": "application/json", "authorization": f"Bearer {TOKEN}", "x-request-id": "r"}
LIMITS = {"workers": 2, "max_body_bytes": 20_000, "max_requests": 4, "body_timeout_s": 0.5}


def body_of(*requests, **more) -> bytes:
    return json.dumps({"requests": list(requests)} | more).encode()


def request_of(**more) -> bytes:
    return json.dumps(REQUEST | more).encode()


CALLS = {
    "one": ("POST", "/v1/retrieve", request_of(), {}),
    "its id escaped": ("POST", "/v1/retrieve", request_of(id="\\ \" \n é 日本"), {}),
    "several": ("POST", "/v1/retrieve", body_of(REQUEST, REQUEST | {"id": 7, "top_k": 2}), {}),
    "one of them wrong": ("POST", "/v1/retrieve", body_of(REQUEST, REQUEST | {"x": 1}), {}),
    "half a surrogate": ("POST", "/v1/retrieve", b'{"id":"\\ud800"}', {}),
    "half a surrogate of two": ("POST", "/v1/retrieve", b'{"requests":[{"id":"\\ud800"}]}', {}),
    "too many": ("POST", "/v1/retrieve", body_of(*[REQUEST] * 5), {}),
    "none": ("POST", "/v1/retrieve", body_of(), {}),
    "another key": ("POST", "/v1/retrieve", body_of(REQUEST, more=1), {}),
    "a wrong attribute": ("POST", "/v1/retrieve", request_of(attributes={"age": "old"}), {}),
    "an unknown key": ("POST", "/v1/retrieve", request_of(idd=1), {}),
    "a key twice": ("POST", "/v1/retrieve", b'{"id":1,"id":2}', {}),
    "no object": ("POST", "/v1/retrieve", b"[1]", {}),
    "no JSON": ("POST", "/v1/retrieve", b"{", {}),
    "no UTF-8": ("POST", "/v1/retrieve", b'{"id":"\xff"}', {}),
    "deep": ("POST", "/v1/retrieve", b"[" * 50 + b"]" * 50, {}),
    "too large": ("POST", "/v1/retrieve", b" " * 30_000, {}),
    "too large elsewhere": ("POST", "/v2/models/grace/infer", b" " * 30_000, {}),
    "of another type": ("POST", "/v1/retrieve", b"{}", {"content-type": "text/plain"}),
    "compressed": ("POST", "/v1/retrieve", b"{}", {"content-encoding": "gzip"}),
    "a wrong timeout": ("POST", "/v1/retrieve", request_of(), {"x-timeout-ms": "1e3"}),
    "another method": ("GET", "/v1/retrieve", None, {}),
    "another path": ("GET", "/v1/nothing?a=%20b", None, {}),
    "no token": ("POST", "/v1/retrieve", request_of(), {"authorization": ""}),
    "no token elsewhere": ("GET", "/v1/model", None, {"authorization": ""}),
    "health": ("GET", "/v1/health/ready", None, {"authorization": ""}),
    "model": ("GET", "/v1/model", None, {}),
    "api": ("GET", "/openapi.json", None, {}),
    "a page": ("GET", "/", None, {}),
    "head": ("HEAD", "/v1/health/live", None, {}),
    "metadata": ("GET", "/v2/models/grace", None, {}),
    "infer": (
        "POST", "/v2/models/grace/infer",
        json.dumps({"inputs": [{
            "name": "request", "shape": [1], "datatype": "BYTES", "data": [json.dumps(REQUEST)],
        }]}).encode(), {},
    ),
    "a wrong infer": ("POST", "/v2/models/grace/infer", b'{"inputs":[]}', {}),
}  # fmt: skip


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    """An engine, its model, the port of its workers, and one of this process."""
    tokens = tmp_path_factory.mktemp("tokens") / "tokens"
    tokens.write_text(f"shop {TOKEN}\n")
    made = config(http=LIMITS | {"token_file": str(tokens)})
    engine, model = small_engine(max_admitted=8, max_batch=4)
    app = build_app(engine, made, tokens=Tokens.load(str(tokens), "tokens"))
    with worked(engine, made) as workers, served(app, made) as inside:
        yield engine, model, workers, inside
    assert engine.drain(20)


@pytest.mark.parametrize("name", CALLS)
def test_an_answer_is_the_same_from_a_worker(both, name):
    _, _, workers, inside = both
    method, path, body, headers = CALLS[name]
    assert exchange(workers, method, path, body, JSON | headers) == exchange(
        inside, method, path, body, JSON | headers
    )


def metric(port: int, name: str) -> float:
    text = exchange(port, "GET", "/metrics", headers=JSON)[2].decode()
    return sum(float(line.split()[-1]) for line in text.splitlines() if line.startswith(name))


def test_calls_count_in_one_place_whoever_answered_them(both):
    _, _, port, _ = both
    ok, refused = (
        'grace_calls_total{protocol="http",route="POST /v1/retrieve",status="200"}',
        ('grace_refusals_total{reason="content_type"}'),
    )
    before = metric(port, ok), metric(port, refused)
    for _ in range(4):
        assert exchange(port, "POST", "/v1/retrieve", request_of(), JSON)[0] == 200
    assert exchange(port, "POST", "/v1/retrieve", b"", JSON | {"content-type": "x"})[0] == 415
    await_that(lambda: (metric(port, ok), metric(port, refused)) == (before[0] + 4, before[1] + 1))
    assert metric(port, "grace_call_seconds_count") > 4


def test_who_is_one_too_many_is_told_at_once_and_the_others_are_answered(both):
    engine, model, port, _ = both
    outcomes = []

    def ask():
        outcomes.append(exchange(port, "POST", "/v1/retrieve", body_of(*[REQUEST] * 4), JSON))

    model.gate.clear()
    threads = [threading.Thread(target=ask) for _ in range(2)]
    for thread in threads:
        thread.start()
    await_that(lambda: engine.status()["admitted"] == 8)
    status, headers, content = exchange(port, "POST", "/v1/retrieve", request_of(), JSON)
    assert (status, headers["retry-after"]) == (429, "1")
    assert json.loads(content)["error"]["field"] == "server"
    model.gate.set()
    for thread in threads:
        thread.join(20)
    assert [status for status, _, _ in outcomes] == [200, 200]


def test_a_deadline_that_passes_is_504(both):
    _, model, port, _ = both
    model.gate.clear()
    headers = JSON | {"x-timeout-ms": "100"}
    try:
        assert exchange(port, "POST", "/v1/retrieve", request_of(), headers)[0] == 504
        status, _, content = exchange(port, "POST", "/v1/retrieve", body_of(REQUEST), headers)
        assert status == 200
        assert "deadline" in json.loads(content)["responses"][0]["error"]["message"]
    finally:
        model.gate.set()


def test_what_nobody_expected_says_nothing_of_the_inside(both):
    _, model, port, _ = both
    model.fault = ValueError("a secret")
    try:
        status, _, content = exchange(port, "POST", "/v1/retrieve", request_of(), JSON)
        parts = exchange(port, "POST", "/v1/retrieve", body_of(REQUEST, {"id": []}), JSON)[2]
    finally:
        model.fault = None
    assert status == 500
    assert b"secret" not in content + parts
    first, second = json.loads(parts)["responses"]
    assert (first["id"], first["error"]["field"]) == ("r1", "server")
    assert second["error"]["field"] == "id"


def test_an_answer_that_was_sent_is_forgotten_without_a_garbage_collector(both, monkeypatch):
    engine, model, port, _ = both
    admitted, submit_all = [], engine.submit_all

    def noting(*args, **options):
        tickets = submit_all(*args, **options)
        admitted.extend(weakref.ref(ticket.future) for ticket in tickets)
        return tickets

    monkeypatch.setattr(engine, "submit_all", noting)
    body = body_of(REQUEST, REQUEST | {"x": 1})
    gc.disable()
    try:
        assert exchange(port, "POST", "/v1/retrieve", body, JSON)[0] == 200
        model.gate.clear()
        late = JSON | {"x-timeout-ms": "100"}
        assert exchange(port, "POST", "/v1/retrieve", body, late)[0] == 200
        model.gate.set()
        await_that(lambda: len(admitted) == 4 and not any(future() for future in admitted))
    finally:
        model.gate.set()
        gc.enable()


@pytest.mark.parametrize("path", ["/v1/retrieve", "/v2/models/grace/infer"])
def test_a_client_that_goes_takes_its_request_along(both, path):
    engine, model, port, _ = both
    body = request_of() if path == "/v1/retrieve" else CALLS["infer"][2]
    before = engine.counters.requests["cancelled"]
    model.gate.clear()
    try:
        head = "".join(f"{name}: {value}\r\n" for name, value in JSON.items())
        text = f"POST {path} HTTP/1.1\r\nhost: a\r\n{head}content-length: {len(body)}\r\n\r\n"
        held = [socket.create_connection(("127.0.0.1", port)) for _ in range(2)]
        for number, one in enumerate(held):  # the first is with the model, the second waits
            one.sendall(text.encode() + body)
            await_that(lambda most=number: engine.status()["admitted"] > most)
        held[1].close()
        await_that(lambda: engine.counters.requests["cancelled"] == before + 1)
    finally:
        model.gate.set()
    assert b" 200 OK" in held[0].recv(100)
    held[0].close()
    await_that(lambda: engine.status()["admitted"] == 0)


def test_a_body_in_chunks_is_read_as_far_as_it_may_go(both):
    _, _, port, _ = both
    for path in ("/v1/retrieve", "/v2/models/grace/infer"):
        for chunk, status in ((b"{", b"400"), (b" " * 30_000, b"413")):
            head = f"POST {path} HTTP/1.1\r\nhost: a\r\nauthorization: Bearer {TOKEN}\r\n"
            head += "content-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n"
            with socket.create_connection(("127.0.0.1", port), timeout=20) as peer:
                peer.sendall(head.encode() + b"%x\r\n%b\r\n0\r\n\r\n" % (len(chunk), chunk))
                assert peer.recv(12) == b"HTTP/1.1 " + status


@pytest.mark.parametrize("path", ["/v1/retrieve", "/v2/models/grace/infer"])
def test_a_body_that_does_not_come_is_408(both, path):
    head = f"POST {path} HTTP/1.1\r\nhost: a\r\ncontent-length: 9\r\n".encode()
    head += f"authorization: Bearer {TOKEN}\r\ncontent-type: application/json\r\n\r\n".encode()
    with socket.create_connection(("127.0.0.1", both[2]), timeout=20) as peer:
        peer.sendall(head)
        assert peer.recv(12) == b"HTTP/1.1 408"


def test_a_worker_that_dies_loses_its_own_connections_and_is_started_again(both, caplog):
    engine, model, port, _ = both
    before = set(children())
    assert len(before) == 2
    model.gate.clear()
    lost = []

    def ask():
        try:
            exchange(port, "POST", "/v1/retrieve", request_of(), JSON)
        except (ConnectionError, OSError) as error:
            lost.append(error)

    thread = threading.Thread(target=ask)
    thread.start()
    await_that(lambda: engine.status()["admitted"] == 1)
    for worker in before:
        os.kill(worker, signal.SIGKILL)
    thread.join(20)
    assert len(lost) == 1
    model.gate.set()
    # Nobody accepts now: the connection waits for one of the next workers.
    assert exchange(port, "POST", "/v1/retrieve", request_of(), JSON)[0] == 200
    await_that(lambda: len(children()) == 2)
    assert not before & set(children())
    assert metric(port, "grace_worker_deaths_total") == 2
    assert "died with -9; its connections are lost" in caplog.text


def test_tls_is_the_workers_and_connections_are_shared_out(shared, tmp_path):
    cert, key, context = issue(tmp_path)
    made = config(http={"tls_cert": cert, "tls_key": key, "workers": 1, "max_connections": 2})
    with worked(shared[0], made) as port:
        held = [HTTPSConnection("127.0.0.1", port, context=context, timeout=20) for _ in range(3)]
        for path in ("/v1/retrieve", "/v1/health/live"):
            for connection in held[:2]:
                body = request_of() if path == "/v1/retrieve" else None
                connection.request("POST" if body else "GET", path, body, JSON)
                response = connection.getresponse()
                assert response.status == 200
                assert "max-age" in response.headers["strict-transport-security"]
                response.read()
        held[2].request("GET", "/v1/health/live")
        assert held[2].getresponse().status == 503
        for connection in held:
            connection.close()


def test_how_many_there_are_by_default(monkeypatch):
    cores = set(range(16))
    monkeypatch.setattr("os.sched_getaffinity", lambda _: cores)
    on_gpu = {"directory": "m", "device": "cuda:1"}
    assert worker_count(config()) == 0
    assert worker_count(config(model=on_gpu)) == 4
    assert worker_count(config(http={"workers": 3})) == 3
    assert worker_count(config(model=on_gpu, http={"workers": 0})) == 0
    cores = set(range(7))
    assert worker_count(config(model=on_gpu)) == 2
    cores = {0, 1}
    assert worker_count(config(model=on_gpu)) == 0
    assert HttpConfig().workers is None


HEADS = st.none() | st.integers(0, 9) | st.dictionaries(st.text(max_size=3), st.text(max_size=9))


@given(
    st.lists(
        st.tuples(
            st.sampled_from(Kind), st.integers(0, 2**64 - 1), HEADS,
            st.lists(st.binary(max_size=20), max_size=3),
        ),
        max_size=5,
    ),
    st.lists(st.integers(0, 200)),
)  # fmt: skip
def test_frames_come_out_as_they_went_in_wherever_they_are_cut(frames, cuts):
    sent = b"".join(piece for frame in frames for piece in pack(*frame))
    bounds = sorted({0, len(sent), *(cut for cut in cuts if cut < len(sent))})
    unpacker, found = Unpacker(), []
    for first, last in itertools.pairwise(bounds):
        found += unpacker.feed(sent[first:last])
    assert [(f.kind, f.number, f.head, bytes(f.body)) for f in found] == [
        (kind, number, head, b"".join(bodies)) for kind, number, head, bodies in frames
    ]
    for frame, (*_, bodies) in zip(found, frames, strict=True):
        assert list(map(bytes, split(frame.body, map(len, bodies)))) == bodies


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=["term", "kill"])
def test_workers_end_with_the_engine(tmp_path, number):
    save_artefacts(tmp_path)
    folders = ["--index", tmp_path / "index", "--model", tmp_path / "model"]
    ports = ["--port", "0", "--grpc-port", "0", "--admin-port", "0", "--workers", "1"]
    with subprocess.Popen(
        [sys.executable, "-m", "grace", "serve", *map(str, folders), *ports],
        stdout=subprocess.PIPE, stderr=(tmp_path / "log").open("w"), text=True,
    ) as process:  # fmt: skip
        try:
            lines = [process.stdout.readline(), process.stdout.readline()]
            port = int(lines[1].rsplit(":", 1)[1])
            assert exchange(port, "POST", "/v1/retrieve", request_of(), JSON)[0] == 200
            found = subprocess.run(
                ["ps", "-o", "pid=", "--ppid", str(process.pid)], capture_output=True, text=True
            )
            (worker,) = map(int, found.stdout.split())
            os.kill(worker, signal.SIGTERM)  # as a terminal sends it to all: not the worker's end
            assert exchange(port, "GET", "/v1/health/live")[0] == 200
            with socket.create_connection(("127.0.0.1", port), timeout=30) as peer:
                if number == signal.SIGKILL:  # with a call under way, whose client sees an end
                    process.send_signal(signal.SIGSTOP)
                    head = "content-type: application/json\r\ncontent-length"
                    text = f"POST /v1/retrieve HTTP/1.1\r\nhost: a\r\n{head}: {len(request_of())}"
                    peer.sendall(text.encode() + b"\r\n\r\n" + request_of())
                    time.sleep(0.2)
                process.send_signal(number)
                with contextlib.suppress(ConnectionResetError):
                    assert peer.recv(100) == b""
            assert process.wait(30) == (0 if number == signal.SIGTERM else -9)
        finally:
            process.kill()
    await_that(lambda: not Path(f"/proc/{worker}").exists() or is_zombie(worker))
    lines = map(json.loads, (tmp_path / "log").read_text().splitlines())
    told = {line["message"]: line for line in lines}
    call = told["POST /v1/retrieve"]
    assert (call["request_id"], call["status"], call["batch_size"]) == ("r", 200, 1)
    assert list(call["stages_ms"]) == ["queue", "input", "compute", "post"]
    assert ("the engine's process is gone, so this HTTP worker ends" in told) == (
        number == signal.SIGKILL
    )
    with pytest.raises(ConnectionError):
        exchange(port, "GET", "/v1/health/live")


def is_zombie(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except OSError:
        return True
