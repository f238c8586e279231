"""What breaks around a server, and what its clients see: docs/reliability.md, row by row."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import resource
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path

import numpy as np
import pytest
import torch
from harness import build_rows, cli
from model_cases import random_features, small_index, small_model
from table_generator import TableGenerator
from test_faults_rows import SCHEMA, YAML
from test_faults_swap import PLAN, VOCAB, shifted, whole
from test_server import call
from web_cases import config, save_artefacts, served, small_engine

import grace
from grace.errors import GraceError, IndexFormatError
from grace.index.history import read_current
from grace.serve import Engine
from grace.serve.app import build_app
from grace.serve.logs import json_logs

REQUEST = {"id": 1, "attributes": {"country": "US", "age": 20}, "features": {"seed": 3}}
SLOW = {"body_timeout_s": 1.0}


@dataclass
class Server:
    """An engine over an index that has 5 ads, behind a real port."""

    folder: Path
    engine: Engine
    port: int

    def shown(self) -> frozenset:
        """The ads and SIDs of an answer, which has to be one."""
        status, answer = call(self.port, "POST", "/v1/retrieve", REQUEST)
        assert status == 200, answer
        return frozenset((ad["ad_id"], tuple(ad["sid"])) for ad in answer["ads"])

    def metric(self, name: str) -> float:
        connection = HTTPConnection("127.0.0.1", self.port, timeout=20)
        connection.request("GET", "/metrics")
        text = connection.getresponse().read().decode()
        connection.close()
        return float(text.split(f"\n{name} ")[1].split()[0])


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    folder = tmp_path / "index"
    build_rows(shifted(5), SCHEMA, folder)
    engine = Engine(folder, TableGenerator(VOCAB), PLAN)
    made = config(http=SLOW)
    with served(build_app(engine, made), made) as port:
        yield Server(folder, engine, port)
    assert engine.drain(20)


def check_debris(folder: Path) -> None:
    names = [path.name for path in folder.rglob("*")]
    assert not [name for name in names if name.endswith(".tmp") or "unfinished" in name]


# ---- the disk and who writes to it ---------------------------------------------------------------


def test_no_room_for_a_version(server: Server):
    """Files cannot grow while a version is written: none is published, the old one answers."""
    unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, unlimited[1]))
    try:
        with pytest.raises((IndexFormatError, OSError)):
            build_rows(shifted(200), SCHEMA, server.folder)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, unlimited)
    assert server.shown() == whole(5)
    assert server.engine.status()["failure"] is None
    check_debris(server.folder)
    build_rows(shifted(8), SCHEMA, server.folder)
    server.engine.reader.refresh()
    assert server.shown() == whole(8)


def test_no_room_at_any_sync(server: Server, monkeypatch):
    """The disk is full at one sync later each time: the old version or the new one, whole."""
    sync, left = os.fsync, [0]

    def failing(descriptor: int) -> None:
        left[0] -= 1
        if left[0] == 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", failing)
    seen, countdown = [], 0
    while not seen or seen[-1] == 5 or left[0] <= 0:
        countdown += 1
        left[0] = countdown
        with contextlib.suppress(OSError):
            build_rows(shifted(8), SCHEMA, server.folder)
        seen.append(server.engine.reader.refresh().num_ads)
        assert server.shown() == whole(seen[-1])
    assert set(seen) == {5, 8}
    assert seen == sorted(seen)


KILLED = """
import itertools, os, sys
sys.path.insert(0, sys.argv[1])
from crash_points import die_at
import grace
for number in itertools.count(1, 6):  # every call: tests/test_faults_crash.py
    child = os.fork()
    if child == 0:
        die_at(number, number)
        grace.build_index(*sys.argv[2:4], out=sys.argv[4])
        os._exit(0)
    if os.waitpid(child, 0)[1] == 0:
        break
"""


def test_a_killed_builder(server: Server, tmp_path: Path):
    """Killed with SIGKILL, some calls later each time, in the directory that is being served."""
    (tmp_path / "new.jsonl").write_text("".join(json.dumps(row) + "\n" for row in shifted(8)))
    (tmp_path / "schema.yaml").write_text(YAML)
    where = (Path(__file__).parent.parent, tmp_path / "new.jsonl", tmp_path / "schema.yaml")
    builder = subprocess.Popen(
        [sys.executable, "-c", KILLED, *map(str, where), str(server.folder)],
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    seen = []
    while builder.poll() is None:
        seen.append(server.shown())
    assert len(builder.stdout.read().splitlines()) > 4
    assert builder.returncode == 0
    assert set(seen) <= {whole(5), whole(8)}
    server.engine.reader.refresh()
    assert server.shown() == whole(8)
    check_debris(server.folder)


def damage_arrays(folder: Path) -> str:
    path = folder / "versions" / read_current(folder) / "arrays.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    return "arrays.safetensors"


def cut_arrays(folder: Path) -> str:
    path = folder / "versions" / read_current(folder) / "arrays.safetensors"
    os.truncate(path, 100)
    return "arrays.safetensors"


def drop_manifest(folder: Path) -> str:
    (folder / "versions" / read_current(folder) / "manifest.json").unlink()
    return "manifest.json"


def drop_version(folder: Path) -> str:
    shutil.rmtree(folder / "versions" / read_current(folder))
    return "has no version"


def scribble_over_current(folder: Path) -> str:
    (folder / "CURRENT").write_bytes(b"\xff" * 20)
    return "CURRENT"


@pytest.mark.parametrize(
    "damage", [damage_arrays, cut_arrays, drop_manifest, drop_version, scribble_over_current]
)
def test_a_damaged_snapshot(server: Server, damage):
    """It is refused by name; the server stays ready, at the version before."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(grace.Index, "open", lambda directory: None)  # it is damaged when seen first
        build_rows(shifted(8), SCHEMA, server.folder)
        named = damage(server.folder)
    with pytest.raises(IndexFormatError):
        server.engine.reader.refresh()
    assert named in server.engine.status()["failure"]
    assert server.shown() == whole(5)
    assert server.metric("grace_index_stuck") == 1
    assert call(server.port, "GET", "/v1/health/ready")[0] == 200
    build_rows(shifted(9), SCHEMA, server.folder)
    server.engine.reader.refresh()
    assert server.shown() == whole(9)
    assert server.metric("grace_index_stuck") == 0


def test_the_directory_is_deleted(server: Server):
    """The server answers from what it has mapped; a new index in its place is moved to."""
    server.engine.index.pause([2])
    shutil.rmtree(server.folder)
    assert server.shown() == {ad for ad in whole(5) if ad[0] != 2}
    assert "no such directory" in server.engine.status()["failure"]
    with pytest.raises((GraceError, OSError)):
        server.engine.index.pause([3])
    assert server.shown() == {ad for ad in whole(5) if ad[0] != 2}
    build_rows(shifted(8), SCHEMA, server.folder)
    server.engine.reader.refresh()
    assert server.shown() == whole(8)


def test_the_disk_of_the_server_s_log_is_full(server: Server):
    full = open("/dev/full", "w", buffering=1)  # noqa: SIM115 - closing it fails, as it must
    with json_logs("debug", full):
        for _ in range(3):
            assert server.shown() == whole(5)
        assert call(server.port, "POST", "/v1/retrieve", {"id": 1, "x": 2})[0] == 400
    with pytest.raises(OSError, match="No space left"):
        full.close()


# ---- clients -------------------------------------------------------------------------------------

BODIES = {
    "10 MB": (b'{"id": 1, "features": "' + b"x" * 10_000_000 + b'"}', 413, "1,048,576 bytes"),
    "deep JSON": (b'{"id": 1, "features": ' + b"[" * 400_000 + b"]" * 400_000 + b"}", 400, "16"),
    "invalid UTF-8": (b'{"id": "\xc3\x28"}', 400, "UTF-8"),
    "NaN": (b'{"id": 1, "features": {"seed": NaN}}', 400, "NaN"),
    "Infinity": (b'{"id": 1, "features": {"seed": -Infinity}}', 400, "Infinity"),
    "1e999": (b'{"id": 1, "features": {"seed": 1e999}}', 400, "1e999"),
}


@pytest.mark.parametrize("case", BODIES)
@pytest.mark.parametrize("chunked", [False, True], ids=["length", "chunked"])
def test_bodies(server: Server, case: str, chunked: bool):
    body, due, word = BODIES[case]
    connection = HTTPConnection("127.0.0.1", server.port, timeout=20)
    parts = (body[first : first + 50_000] for first in range(0, len(body), 50_000))
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # before all of it was sent
        connection.request(
            "POST", "/v1/retrieve", parts if chunked else body,
            {"content-type": "application/json"}, encode_chunked=chunked,
        )  # fmt: skip
    try:
        response = connection.getresponse()
        error = json.loads(response.read())["error"]
        assert (response.status, error["field"]) == (due, "body")
        assert word in error["message"]
    except ConnectionResetError:
        assert due == 413  # the answer may be lost where the client goes on sending
    connection.close()
    assert server.shown() == whole(5)


def test_slow_clients_keep_nobody_waiting(server: Server):
    """Half a head, half a body, a byte at a time: let go, and others are answered meanwhile."""
    head = b"POST /v1/retrieve HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\n"
    openings = (b"", b"POST", head, head + b"content-length: 50\r\n\r\n{")
    slow = [socket.create_connection(("127.0.0.1", server.port), 20) for _ in range(40)]
    for number, peer in enumerate(slow):
        peer.sendall(openings[number % 4])
    let_go: set[int] = set()
    deadline = time.monotonic() + 60
    while len(let_go) < len(slow) and time.monotonic() < deadline:
        assert server.shown() == whole(5)
        for number in set(range(40)) - let_go:
            try:
                slow[number].sendall(b" " if number % 4 == 3 else b"x")
                slow[number].setblocking(False)
                if slow[number].recv(1000) == b"":
                    let_go.add(number)
            except BlockingIOError:
                slow[number].setblocking(True)
            except OSError:
                let_go.add(number)
    assert len(let_go) == len(slow)
    for peer in slow:
        peer.close()


def test_a_feature_that_is_no_number():
    """What JSON cannot say, gRPC and Python can: the request fails alone."""
    engine = Engine(small_index(), small_model(), grace.BeamPlan((1, 5, 25), 100))
    draw = np.random.default_rng(0)
    good = [engine.submit({"id": n, "features": random_features(draw)}) for n in range(4)]
    bad = [
        engine.submit({"id": "bad", "features": {"age": value}})
        for value in (float("nan"), float("inf"), -float("inf"))
    ]
    assert all(ticket.future.result(60).error is None for ticket in good)
    for ticket in bad:
        error = ticket.future.result(60).error
        assert error.field == "features.age"
    assert engine.drain()


# ---- the machine ---------------------------------------------------------------------------------


@pytest.mark.parametrize("years", [-30, 30])
def test_the_clock_jumps(monkeypatch, years: int):
    """Deadlines are counted on a clock that only goes forward: none is early, none late."""
    engine, model = small_engine(max_batch=1)
    model.gate.clear()
    running, waiting = (engine.submit({"id": n}, timeout_ms=20_000) for n in range(2))
    late = engine.submit({"id": 2}, timeout_ms=50)
    now, now_ns = time.time, time.time_ns
    shift = years * 365 * 86_400
    monkeypatch.setattr(time, "time", lambda: now() + shift)
    monkeypatch.setattr(time, "time_ns", lambda: now_ns() + shift * 10**9)
    time.sleep(0.1)
    model.gate.set()
    with pytest.raises(grace.serve.Expired):
        late.future.result(20)
    assert [ticket.future.result(20).id for ticket in (running, waiting)] == [0, 1]
    assert engine.drain(20)


def test_a_taken_admin_port(tmp_path: Path):
    save_artefacts(tmp_path)
    artefacts = ("--index", tmp_path / "index", "--model", tmp_path / "model", "--port", "0")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        refused = cli("serve", *artefacts, "--grpc-port", "0", "--admin-port", str(port))
    refused.check_refused(f"admin.port: 127.0.0.1:{port} is taken by another process")


def test_a_device_without_memory_at_the_start(tmp_path: Path, monkeypatch):
    """Nothing is served; one line says what to lower."""
    save_artefacts(tmp_path)

    def no_room(*arguments: object, **options: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    monkeypatch.setattr("grace.retrieve.paths.StepSearch", no_room)
    ports = ("--port", "0", "--grpc-port", "0", "--admin-port", "0")
    refused = cli("serve", "--index", tmp_path / "index", "--model", tmp_path / "model", *ports)
    refused.check_refused("model.device", "out of memory")


def test_a_model_that_raises(server: Server, monkeypatch):
    """500 with an id for those of its batch, nothing internal; the next are answered."""
    threads = threading.active_count()

    def fail(self: object, features: list[dict]) -> None:
        raise ZeroDivisionError("a secret of the model")

    with monkeypatch.context() as patch:
        patch.setattr(TableGenerator, "start", fail)
        for _ in range(3):
            status, answer = call(server.port, "POST", "/v1/retrieve", REQUEST)
            assert status == 500
            assert answer["error"]["request_id"]
            assert "secret" not in json.dumps(answer)
    assert server.shown() == whole(5)
    assert threading.active_count() <= threads + 1
