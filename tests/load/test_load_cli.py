"""`grace load` as a user runs it, against an app of known manners."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from typer.testing import CliRunner

from grace.cli import app
from grace.load.bodies import in_order, read_bodies
from tests.load_cases import BODIES


async def retrieve(request: Request) -> Response:
    """Every fourth request is one too many; those with `wrong` are wrong."""
    raw = await request.json()
    if raw.get("wrong"):
        return JSONResponse({"error": "wrong"}, 400)
    if raw["id"] % 4 == 3:
        return JSONResponse({"error": "busy"}, 429)
    return JSONResponse({"id": raw["id"], "ads": []})


async def locked(request: Request) -> Response:
    return Response("who are you?", 401)


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    routes = [
        Route("/v1/retrieve", retrieve, methods=["POST"]),
        Route("/locked", locked, methods=["POST"]),
    ]
    config = uvicorn.Config(Starlette(routes=routes), port=0, log_level="error", lifespan="off")
    served = uvicorn.Server(config)
    thread = threading.Thread(target=served.run, daemon=True)
    thread.start()
    while not served.started:
        time.sleep(0.01)
    yield f"http://127.0.0.1:{served.servers[0].sockets[0].getsockname()[1]}"
    served.should_exit = True
    thread.join(5)


@pytest.fixture
def requests(tmp_path: Path) -> Path:
    path = tmp_path / "requests.jsonl"
    path.write_text("".join(f'{{"id": {i}}}\n' for i in range(8)))
    return path


def grace_load(*arguments: object, **options: object) -> subprocess.Popen:
    command = [sys.executable, "-m", "grace", "load", *map(str, arguments)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    # A shell's background jobs ignore Ctrl-C and hand that down; a user at a terminal does not.
    heard = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    return subprocess.Popen(command, preexec_fn=heard, **(pipes | options))


def test_both_loops_as_json_and_as_a_picture(server, requests, tmp_path):
    run = grace_load(
        "--url", server, "--requests", requests, "--closed", "1,3", "--open", "200", "--count", 80,
        "--warmup", 0.1, "--processes", 2, "--json", "--plot", tmp_path / "load.png",
    )  # fmt: skip
    output, errors = run.communicate(timeout=60)
    assert run.returncode == 0, errors
    assert errors == f"{tmp_path / 'load.png'}\n"  # no progress in a pipe
    assert (tmp_path / "load.png").read_bytes().startswith(b"\x89PNG")
    found = json.loads(output)
    assert found["url"] == f"{server}/v1/retrieve"
    assert [(level["loop"], level["size"]) for level in found["levels"]] == [
        ("closed", 1), ("closed", 3), ("open", 200),
    ]  # fmt: skip
    for level in found["levels"]:
        assert level["requests"] == 80
        assert level["answered"] + level["failures"]["429"]["count"] == 80
        assert level["failures"]["429"]["count"] == pytest.approx(20, abs=3)
        assert level["p50_ms"] > 0
        assert level["p99_ms"] is None  # a quarter was refused
        assert not level["keeps_limits"]
    assert found["capacity"] is None


def test_a_table_for_people(server, requests, monkeypatch):
    requests.write_text('{"id": 0}\n{"id": 1, "wrong": true}\n')
    run = grace_load(
        "--url", server, "--requests", requests, "--closed", 2, "--duration", 0.3, "--warmup", 0,
    )  # fmt: skip
    output, errors = run.communicate(timeout=60)
    assert run.returncode == 0, errors
    assert "2 in flight" in output
    assert "400: " in output
    assert "capacity (mean at most 20 ms, P99 at most 100 ms): no level kept the limits" in output


def test_ctrl_c_prints_what_was_measured(server, requests):
    leader, follower = pty.openpty()  # so that progress says when the first level is done
    run = grace_load(
        "--url", server, "--requests", requests, "--closed", "1,2", "--duration", 0.5, "--warmup",
        0, "--json", stderr=follower,
    )  # fmt: skip
    os.close(follower)
    shown = b""
    while b"2 in flight" not in shown:
        shown += os.read(leader, 4096)
    run.send_signal(signal.SIGINT)
    output, _ = run.communicate(timeout=60)
    os.close(leader)
    assert run.returncode == 130
    first, *second = json.loads(output)["levels"]
    assert not first["partial"]
    assert all(level["partial"] for level in second)


def invoke(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["load", *map(str, arguments)])
    return result.exit_code, result.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "name levels: --closed 1,2,4 or --open 100,200"),
        (["--closed", "1,x"], "--closed: expected requests in flight, 1 to 100,000, got 'x'"),
        (["--closed", "0"], "--closed: expected"),
        (["--open", "-3"], "--open: expected requests a second, above 0, got '-3'"),
        (["--open", "nan"], "--open: expected"),
        (["--closed", "1", "--duration", "0"], "--duration must be at least 0.001, got 0"),
        (["--closed", "1", "--count", "0"], "--count must be at least 1, got 0"),
        (["--closed", "1", "--processes", "999"], "--processes must be at most 256"),
        (["--closed", "1", "--order", "up"], "--order must be cycle or sample, got 'up'"),
        (["--closed", "1", "--mean", "0"], "--mean must be above 0 ms"),
        (["--closed", "1", "--header", "x"], "--header: expected 'name: value', got 'x'"),
        (["--closed", "1", "--header", "a: b\r\nc: d"], "--header: expected 'name: value'"),
        (["--closed", "1", "--header", "Content-Length: 3"], "is the generator's own"),
        (["--closed", "1", "--plot", "/nowhere/x.png"], "/nowhere/x.png: its folder does not"),
        (["--closed", "1", "--requests", "no.jsonl"], "no.jsonl: cannot be read: No such file"),
        (["--closed", "1", "--url", "127.0.0.1:80"], "--url: expected http://HOST:PORT"),
        (["--closed", "1", "--url", "http://x:99999"], "--url: Port out of range"),
        (["--closed", "1", "--url", "http://ä..b"], "--url: 'ä..b' is no host name"),
        (["--closed", "1", "--url", "http://" + "a" * 300], "is no host name"),
        (["--closed", "1", "--url", "http://127.0.0.1:9"], "cannot be asked: Connection refused"),
        (["--closed", "1", "--url", "{server}/elsewhere"], "elsewhere: answers requests with"),
        (["--closed", "1", "--url", "{server}/locked"], "status 401: who are you?"),
        (["--closed", "1", "--url", "https://127.0.0.1:9", "--ca", "no.pem"], "--ca: no.pem: No"),
    ],
)  # fmt: skip
def test_what_cannot_be_measured(server, requests, arguments, message):
    given = ["--url", server, "--requests", requests, *arguments]
    code, errors = invoke(*(str(each).replace("{server}", server) for each in given))
    assert code == 2
    assert errors.startswith("error: ")
    assert errors.count("\n") == 1
    assert message in errors


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b'{"id": 1}\n\n{"id"\n', "line 3 is not JSON"),
        (b"\n \n", "holds no request"),
        (b"[" * 100_000, "line 1 is not JSON"),
        (b'{"id": "\xff"}', "line 1 is not JSON"),
    ],
)
def test_a_file_of_no_requests(server, tmp_path, text, message):
    path = tmp_path / "requests.jsonl"
    path.write_bytes(text)
    code, errors = invoke("--url", server, "--requests", path, "--closed", 1)
    assert code == 2
    assert message in errors


def test_orders(requests):
    bodies = read_bodies(requests)
    assert len(bodies) == 8
    both = [in_order(bodies, "cycle", "0", part, 2) for part in range(2)]
    taken = [next(both[i % 2]) for i in range(16)]
    assert taken == bodies * 2
    drawn = in_order(bodies, "sample", "seed")
    again = in_order(bodies, "sample", "seed")
    sample = [next(drawn) for _ in range(200)]
    assert sample == [next(again) for _ in range(200)]
    assert set(sample) == set(bodies)
    assert next(in_order(BODIES, "sample", "seed")) == BODIES[0]
