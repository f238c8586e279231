"""The process: ports, slow clients, a clean end."""

import json
import os
import signal
import socket
import threading
import time
from http.client import HTTPConnection, RemoteDisconnected
from unittest.mock import patch

import pytest
from harness import cli
from web_cases import REQUEST, config, save_artefacts, served, small_engine

from grace.errors import ConfigError
from grace.serve import server
from grace.serve.app import build_app
from grace.serve.connection import MAX_HEAD_BYTES
from grace.serve.listening import bind
from grace.serve.server import check_machine, serve

JSON = {"content-type": "application/json"}
QUICK = {"http": {"body_timeout_s": 0.1}}


def call(port: int, method: str, path: str, body: object = None) -> tuple[int, dict]:
    connection = HTTPConnection("127.0.0.1", port, timeout=20)
    try:
        connection.request(method, path, None if body is None else json.dumps(body), JSON)
        response = connection.getresponse()
        return response.status, json.loads(response.read())
    finally:
        connection.close()


def raw(port: int, *parts: bytes) -> bytes:
    """Send bytes, and return all that comes until the server closes the connection."""
    with socket.create_connection(("127.0.0.1", port), timeout=20) as peer:
        for part in parts:
            peer.sendall(part)
        received = b""
        while chunk := peer.recv(65_536):
            received += chunk
        return received


def test_keep_alive_and_ids_over_a_real_port(shared):
    with served(build_app(shared[0], config()), config()) as port:
        connection = HTTPConnection("127.0.0.1", port, timeout=20)
        for _ in range(3):
            connection.request("POST", "/v1/retrieve", json.dumps(REQUEST), JSON)
            response = connection.getresponse()
            assert response.status == 200
            assert "server" not in response.headers
            assert json.loads(response.read())["id"] == "r1"
        connection.close()


def test_a_client_that_sends_nothing_or_half_is_let_go(shared):
    made = config(**QUICK)
    head = b"POST /v1/retrieve HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\n"
    with served(build_app(shared[0], made), made) as port:
        assert raw(port) == b""
        assert raw(port, b"POST /v1/ret") == b""
        assert raw(port, head) == b""
        answer = raw(port, head + b'content-length: 9\r\n\r\n{"id"')
        assert answer.startswith(b"HTTP/1.1 408 ")
        assert b"did not come within 0.1 s" in answer


def test_endless_and_broken_heads_are_400(shared):
    made = config()
    with served(build_app(shared[0], made), made) as port:
        long = b"GET / HTTP/1.1\r\nx: " + b"y" * MAX_HEAD_BYTES
        assert raw(port, long).startswith(b"HTTP/1.1 400 ")
        assert raw(port, b"\x16\x03\x01 no HTTP\r\n\r\n").startswith(b"HTTP/1.1 400 ")
        assert call(port, "GET", "/v1/health/live")[0] == 200


CHUNKED = (
    b"POST %b HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\n"
    b"transfer-encoding: chunked\r\n\r\n"
)


def test_a_long_head_is_400_even_in_one_read(shared):
    made = config()
    field = b"x: " + b"y" * MAX_HEAD_BYTES + b"\r\n"
    with served(build_app(shared[0], made), made) as port:
        for head in (
            b"GET /v1/health/live HTTP/1.1\r\nhost: a\r\n" + field + b"\r\n",
            b"GET /v1/health/live HTTP/1.1\r\n" + b"a: b\r\n" * (MAX_HEAD_BYTES // 6) + b"\r\n",
            b"GET /" + b"a" * MAX_HEAD_BYTES + b" HTTP/1.1\r\nhost: a\r\n\r\n",
        ):
            assert raw(port, head).startswith(b"HTTP/1.1 400 ")
        fits = b"GET /v1/health/live HTTP/1.1\r\nhost: a\r\nconnection: close\r\n"
        fits += b"x: " + b"y" * (MAX_HEAD_BYTES - 200) + b"\r\n\r\n"
        assert raw(port, fits).startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize(
    "start", [b"0\r\nx: ", b"9;x=", b'9\r\n{"id":"a"'], ids=["trailer", "extension", "bad"]
)
@pytest.mark.parametrize("path", [b"/v1/retrieve", b"/nope"])
def test_trailers_and_chunk_extensions_end(shared, start, path):
    made = config()
    with served(build_app(shared[0], made), made) as port:
        with socket.create_connection(("127.0.0.1", port), timeout=20) as peer:
            sent = 0
            try:
                peer.sendall(CHUNKED % path + start)
                while sent < 64 << 20:
                    peer.sendall(b"a" * 65_536)
                    sent += 65_536
            except OSError:
                pass  # closed
        assert sent < 16 << 20  # what the buffers of two sockets hold
        assert call(port, "GET", "/v1/health/live")[0] == 200


def test_a_trailer_is_answered_400_and_a_short_one_is_no_header(shared):
    made = config()
    body = json.dumps(REQUEST).encode()
    chunks = CHUNKED % b"/v1/retrieve" + b"%x\r\n%b\r\n0\r\n" % (len(body), body)
    with served(build_app(shared[0], made), made) as port:
        with socket.create_connection(("127.0.0.1", port), timeout=20) as peer:
            peer.sendall(chunks + b"x: ")
            time.sleep(0.1)
            peer.sendall(b"a" * (MAX_HEAD_BYTES + 1))
            assert peer.recv(65_536).startswith(b"HTTP/1.1 400 ")
        with socket.create_connection(("127.0.0.1", port), timeout=20) as peer:
            peer.sendall(chunks + b"x-request-id: trailer\r\n\r\n")
            answer = peer.recv(65_536)
            assert answer.startswith(b"HTTP/1.1 200 ")
            assert b"x-request-id: trailer" not in answer


def test_a_body_in_single_bytes_is_a_body(shared):
    made = config()
    body = json.dumps(REQUEST).encode() + b" " * MAX_HEAD_BYTES
    pieces = b"".join(b"1\r\n%c\r\n" % byte for byte in body)
    with (
        served(build_app(shared[0], made), made) as port,
        socket.create_connection(("127.0.0.1", port), timeout=20) as peer,
    ):
        peer.sendall(CHUNKED % b"/v1/retrieve")
        for at in range(0, len(pieces), 1000):
            peer.sendall(pieces[at : at + 1000])
        peer.sendall(b"0\r\n\r\n")
        assert peer.recv(65_536).startswith(b"HTTP/1.1 200 ")


def test_a_connection_too_many_is_refused_and_those_open_go_on(shared):
    made = config(http={"max_connections": 2})
    ask = b"GET /v1/health/live HTTP/1.1\r\nhost: a\r\n\r\n"
    with served(build_app(shared[0], made), made) as port:
        held = [HTTPConnection("127.0.0.1", port, timeout=20) for _ in range(2)]

        def all_are_answered():
            for connection in held:
                connection.request("GET", "/v1/health/live")
                response = connection.getresponse()
                assert (response.status, response.read()) == (200, b'{"live":true}')

        all_are_answered()
        for _ in range(100):
            with socket.create_connection(("127.0.0.1", port), timeout=20) as peer:
                assert peer.recv(65_536).startswith(b"HTTP/1.1 503 ")
        assert raw(port, ask).startswith(b"HTTP/1.1 503 ")
        all_are_answered()
        held.pop().close()
        deadline = time.monotonic() + 20
        while not raw(port, ask.replace(b"host", b"connection: close\r\nhost")).startswith(
            b"HTTP/1.1 200 "
        ):
            assert time.monotonic() < deadline
        held.pop().close()


def serve_and_stop(tmp_path, while_serving, **sections) -> bool:
    """Run `serve` here, in the main thread, and `while_serving(port, model)` beside it."""
    save_artefacts(tmp_path)
    made = config(
        index={"directory": str(tmp_path / "index")}, model={"directory": str(tmp_path / "model")},
        **{"http": {"port": 0}} | sections,
    )  # fmt: skip
    engine, model = small_engine()
    threads, faults = [], []

    def announce(text):
        port = int(text.split("http://127.0.0.1:")[1].split()[0])

        def run():
            try:
                while_serving(port, model)
            except BaseException as fault:
                faults.append(fault)
            finally:
                os.kill(os.getpid(), signal.SIGTERM)

        threads.append(threading.Thread(target=run))
        threads[0].start()

    with patch.object(server, "make_engine", lambda _: engine):
        complete = serve(made, announce)
    threads[0].join(20)
    model.gate.set()
    assert faults == []
    return complete


def test_a_signal_lets_admitted_requests_be_answered_and_no_others_in(tmp_path):
    outcomes, waiting = [], []

    def while_serving(port, model):
        model.gate.clear()
        for _ in range(3):
            thread = threading.Thread(
                target=lambda: outcomes.append(call(port, "POST", "/v1/retrieve", REQUEST))
            )
            thread.start()
            waiting.append(thread)
        while '"admitted": 0' in json.dumps(admitted(port)):
            time.sleep(0.01)
        threading.Thread(target=end, args=(port, model)).start()

    def admitted(port):
        connection = HTTPConnection("127.0.0.1", port, timeout=20)
        connection.request("GET", "/metrics")
        text = connection.getresponse().read().decode()
        connection.close()
        count = text.split("\ngrace_admitted_requests ")[1].split()[0]
        return {"admitted": int(float(count))}

    def end(port, model):
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            try:
                call(port, "GET", "/v1/health/live")
            except (ConnectionError, RemoteDisconnected):
                break  # no new connections any more
        model.gate.set()

    assert serve_and_stop(tmp_path, while_serving)
    for thread in waiting:
        thread.join(20)
    assert [status for status, _ in outcomes] == [200] * 3


def test_an_answer_that_never_comes_ends_the_wait(tmp_path):
    def while_serving(port, model):
        model.gate.clear()
        with socket.create_connection(("127.0.0.1", port)) as peer:
            body = json.dumps(REQUEST).encode()
            peer.sendall(
                b"POST /v1/retrieve HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\n"
                b"content-length: %d\r\n\r\n%b" % (len(body), body)
            )
            time.sleep(0.2)

    drain = {"port": 0, "drain_timeout_s": 0.3}
    assert not serve_and_stop(tmp_path, while_serving, http=drain)


@pytest.fixture
def artefacts(tmp_path):
    save_artefacts(tmp_path)
    return ["serve", "--index", tmp_path / "index", "--model", tmp_path / "model"]


def test_a_port_that_is_taken_is_one_line_and_exit_2(artefacts):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        outcome = cli(*artefacts, "--port", str(port))
    outcome.check_refused(f"http.port: 127.0.0.1:{port} is taken by another process")
    assert outcome.err.count("\n") == 1


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--host", "no such host"], "http.host: 'no such host' is no address"),
        (["--host", "192.0.2.1"], "http.host: 192.0.2.1 is no address of this machine"),
        (["--host", "ä..b"], "http.host: 'ä..b' is no host name"),
        (["--host", "a" * 300], "http.host: 'aaa"),
        (["--device", "cuda:99"], "model.device: "),
        (["--plan", "1,x"], "--plan: expected integers"),
        (["--plan", "2,4"], "model.plan: widths[0] must be 1"),
        (["--matching", "none"], "model.matching: expected one of"),
        (["--config", "no.toml"], "no.toml: cannot be read"),
        (["--timeline", "/no/such/folder/t.json"], "telemetry.timeline: the folder"),
    ],
)
def test_a_bad_flag_is_one_line_and_exit_2(artefacts, flags, message):
    cli(*artefacts, *flags).check_refused(message)


def test_what_is_not_there_is_named_by_its_key(tmp_path):
    save_artefacts(tmp_path)
    index, model = {"directory": str(tmp_path / "index")}, {"directory": str(tmp_path / "model")}
    check_machine(config(index=index, model=model))
    with pytest.raises(ConfigError, match=r"^index\.directory: .*model holds no CURRENT"):
        check_machine(config(index=model, model=model))
    with pytest.raises(ConfigError, match=r"^model\.directory: .*index holds no config\.json"):
        check_machine(config(index=index, model=index))
    cli("serve").check_refused("index.directory: missing")


def test_without_the_extra_it_says_what_to_install(artefacts):
    with patch("importlib.util.find_spec", lambda name: None if name == "uvloop" else name):
        cli(*artefacts).check_refused("serving needs uvloop: pip install 'grace[serve]'")


def test_an_ipv6_host_and_a_port_beyond_it():
    with bind("http", "::1", 0) as port:
        assert port.family == socket.AF_INET6
