"""The admin port: what it changes is on disk before it answers; what it refuses changes nothing."""

from __future__ import annotations

import fcntl
import logging
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from harness import build_rows
from starlette.testclient import TestClient
from table_generator import TableGenerator
from test_faults_rows import SCHEMA, good_rows
from test_faults_swap import PLAN, VOCAB, shifted

import grace
from grace.errors import ConfigError
from grace.serve import Engine
from grace.serve.admin import build_admin_app
from grace.serve.config import AdminConfig, HttpConfig, IndexConfig, ModelConfig, ServeConfig

REQUEST = {"id": 1, "attributes": {"country": "US", "age": 20}, "features": {"seed": 3}}
TOKEN = "correct-horse-battery"


@dataclass
class Served:
    """An engine over ads 0 to 7, which had ads 0 to 4 before, and its admin port."""

    folder: Path
    engine: Engine
    client: TestClient

    def shown(self) -> set[int]:
        answer = self.engine.submit(REQUEST).future.result(60)
        return set(answer.index.take_ad_ids(answer.positions))

    def post(self, path: str, body: object = None, **options):
        return self.client.post(f"/admin/{path}", json=body, **options)


def config(folder: Path, **admin: object) -> ServeConfig:
    return ServeConfig(
        index=IndexConfig(directory=str(folder)),
        model=ModelConfig(directory="unused"),
        http=HttpConfig(max_body_bytes=2_000),
        admin=AdminConfig(**admin),
    )


def client(engine: Engine, settings: ServeConfig, **options: object) -> TestClient:
    app = build_admin_app(engine, settings)
    return TestClient(app, "http://127.0.0.1:8002", raise_server_exceptions=False, **options)


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    for size in (5, 8):
        build_rows(shifted(size), SCHEMA, tmp_path)
    engine = Engine(tmp_path, TableGenerator(VOCAB), PLAN)
    yield Served(tmp_path, engine, client(engine, config(tmp_path)))
    assert engine.drain()


def check_refused(response, status: int, field: str, *words: str) -> None:
    error = response.json()["error"]
    assert (response.status_code, error["field"]) == (status, field), error
    assert error["request_id"] == response.headers["x-request-id"]
    for word in words:
        assert word in error["message"]


@pytest.mark.parametrize(
    ("off", "on", "flag"), [("pause", "resume", "paused"), ("bid-off", "bid-on", "bid_off")]
)
def test_ads_go_off_and_on(served: Served, off: str, on: str, flag: str):
    done = served.post(off, {"ad_ids": [2, 3]})
    assert done.json() == {"version": served.engine.index.version, "ads": 2}
    assert served.shown() == {0, 1, 4, 5, 6, 7}
    reopened = grace.Index.open(served.folder)
    assert reopened.ad_state[reopened.find_ads([2, 3])].all()
    assert served.client.get("/admin/status").json()[f"{flag}_ads"] == 2
    assert served.post(on, {"ad_ids": [2]}).status_code == 200
    assert served.shown() == {0, 1, 2, 4, 5, 6, 7}


def test_a_change_is_synced_before_it_is_acknowledged(served: Served, monkeypatch):
    synced, sync = [], os.fsync

    def noting(descriptor: int) -> None:
        sync(descriptor)
        synced.append(os.path.basename(os.readlink(f"/proc/self/fd/{descriptor}")))

    monkeypatch.setattr(os, "fsync", noting)
    assert served.post("pause", {"ad_ids": [2]}).status_code == 200
    assert synced == ["pauses.log", served.folder.name]  # the file, and its new name


IDS = [
    (None, "ad_ids", ["expected a list", "null"]),
    ({}, "ad_ids", ["expected a list"]),
    ({"ad_ids": []}, "ad_ids", ["at least one"]),
    ({"ad_ids": "2"}, "ad_ids", ["expected a list", "'2'"]),
    ({"ad_ids": [2, 99]}, "ad_ids", ["no ad 99", "nothing was changed"]),
    ({"ad_ids": [2, "2"]}, "ad_ids", ["no ad '2'"]),
    ({"ad_ids": [2, True]}, "ad_ids", ["no ad True"]),
    ({"ad_ids": [2, None]}, "ad_ids", ["no ad"]),
    ({"ad_ids": [2, [3]]}, "ad_ids", ["no ad"]),
    ({"ad_ids": [2], "ads": [3]}, "ads", ["unknown key", "ad_ids"]),
    ([2], "body", ["expected an object"]),
]


@pytest.mark.parametrize(("body", "field", "words"), IDS, ids=repr)
def test_wrong_ads_are_named_and_nothing_changes(served: Served, body, field: str, words: list):
    check_refused(served.post("pause", body), 400, field, *words)
    assert served.shown() == set(range(8))
    assert not (served.folder / "pauses.log").exists()


BODIES = {
    "invalid UTF-8": (b'{"ad_ids": ["\xff"]}', 400),
    "deep": (b'{"ad_ids": ' + b"[" * 500 + b"]" * 500 + b"}", 400),
    "NaN": (b'{"ad_ids": [NaN]}', 400),
    "no JSON": (b"{", 400),
    "huge integer": (b'{"ad_ids": [' + b"9" * 1000 + b"]}", 400),
    "twice": (b'{"ad_ids": [1], "ad_ids": [2]}', 400),
    "too large": (b'{"ad_ids": [1' + b" " * 2000 + b"]}", 413),
}


@pytest.mark.parametrize("body", BODIES)
def test_bodies_are_limited(served: Served, body: str):
    content, status = BODIES[body]
    headers = {"content-type": "application/json"}
    response = served.client.post("/admin/pause", content=content, headers=headers)
    check_refused(response, status, "body")
    assert served.shown() == set(range(8))


def test_a_surrogate_is_no_ad(served: Served):
    response = served.client.post(
        "/admin/pause",
        content=b'{"ad_ids": ["\\ud800"]}',
        headers={"content-type": "application/json"},
    )
    check_refused(response, 400, "ad_ids", "no ad")


def test_versions_and_rollback(served: Served):
    now, before = served.client.get("/admin/versions").json()["versions"]
    assert (now["current"], before["current"]) == (True, False)
    assert served.shown() == set(range(8))
    done = served.post("rollback")
    assert done.json() == {"version": before["version"], "watermark": None}
    assert served.shown() == set(range(5))
    assert served.post("rollback", {"to": now["version"]}).json()["version"] == now["version"]
    assert served.shown() == set(range(8))
    assert served.client.get("/admin/status").json() == {
        "version": now["version"], "admitted": 0, "draining": False, "failure": None,
        "failed": None, "ads": 8, "sids": 8, "paused_ads": 0, "bid_off_ads": 0,
    }  # fmt: skip


@pytest.mark.parametrize("to", ["../versions", "", "absent", 7, ["x"], {}])
def test_a_rollback_to_what_is_no_version(served: Served, to):
    check_refused(served.post("rollback", {"to": to}), 400, "to", served.engine.index.version)
    assert served.shown() == set(range(8))


def test_a_rollback_removes_no_version(served: Served):
    for size in (9, 10, 11):
        build_rows(shifted(size), SCHEMA, served.folder, keep=9)
    assert served.post("rollback").status_code == 200
    assert len(served.client.get("/admin/versions").json()["versions"]) == 5


def test_a_rollback_from_the_first_version(tmp_path: Path):
    build_rows(shifted(5), SCHEMA, tmp_path)
    engine = Engine(tmp_path, TableGenerator(VOCAB), PLAN)
    check_refused(client(engine, config(tmp_path)).post("/admin/rollback"), 409, "index", "before")
    engine.drain()


def test_a_rollback_while_another_process_writes(served: Served):
    with open(served.folder / ".lock", "ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        check_refused(served.post("rollback"), 409, "index", "another process is writing")


def test_a_refresh_says_what_keeps_a_version_out(served: Served):
    held = served.engine.index.version
    build_rows([row | {"sid": [1, 2, 3]} for row in good_rows(4)], SCHEMA, served.folder)
    check_refused(served.post("refresh", {}), 409, "index", f"stays at version {held}", "plan")
    status = served.client.get("/admin/status").json()
    assert status["version"] == held
    assert "plan" in status["failure"]
    new = build_rows(shifted(9), SCHEMA, served.folder).version
    assert served.post("refresh").json() == {"version": new}
    assert served.client.get("/admin/status").json()["failure"] is None


def test_a_fault_nobody_foresaw_is_not_told(served: Served, monkeypatch):
    def fail(index: object, ad_ids: list) -> None:
        raise RuntimeError("a secret")

    monkeypatch.setitem(grace.serve.admin.CHANGES, "pause", fail)
    response = served.post("pause", {"ad_ids": [1]})
    check_refused(response, 500, "server")
    assert "secret" not in response.text


def test_a_server_over_one_index(tmp_path: Path):
    engine = Engine(build_rows(shifted(5), SCHEMA), TableGenerator(VOCAB), PLAN)
    served = Served(tmp_path, engine, client(engine, config(tmp_path)))
    for path in ("refresh", "rollback"):
        check_refused(served.post(path), 409, "index", "follows no directory")
    assert served.post("pause", {"ad_ids": [2]}).status_code == 200
    assert served.shown() == {0, 1, 3, 4}
    assert served.client.get("/admin/status").json()["paused_ads"] == 1
    engine.drain()


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "example.org"])
def test_beyond_loopback_a_token_is_needed(tmp_path: Path, host: str):
    with pytest.raises(ConfigError, match=r"admin\.token_file"):
        config(tmp_path, host=host)


def test_tokens(served: Served, tmp_path_factory):
    tokens = tmp_path_factory.mktemp("secrets") / "tokens"
    tokens.write_text(f"ops {TOKEN}\n")
    admin = client(served.engine, config(served.folder, host="0.0.0.0", token_file=str(tokens)))
    for wrong in (None, "", "Bearer", f"Basic {TOKEN}", f"Bearer {TOKEN[:-1]}", f"Bearer {TOKEN}x"):
        headers = {} if wrong is None else {"authorization": wrong}
        for path in ("pause", "resume", "bid-off", "bid-on", "refresh", "rollback"):
            response = admin.post(f"/admin/{path}", json={"ad_ids": [1]}, headers=headers)
            check_refused(response, 401, "authorization")
        for path in ("versions", "status"):
            check_refused(admin.get(f"/admin/{path}", headers=headers), 401, "authorization")
    headers = {"authorization": f"Bearer {TOKEN}"}
    assert admin.post("/admin/pause", json={"ad_ids": [1]}, headers=headers).status_code == 200
    assert admin.get("/admin/status", headers=headers).json()["paused_ads"] == 1


@pytest.mark.parametrize(
    ("headers", "field"),
    [({"origin": "https://example.org"}, "origin"), ({"host": "example.org:8002"}, "host"),
     ({"host": ""}, "host"), ({"host": "[::"}, "host")],
)  # fmt: skip
def test_a_page_in_a_browser_is_refused(served: Served, headers: dict, field: str):
    response = served.post("pause", {"ad_ids": [1]}, headers=headers)
    check_refused(response, 403, field)
    assert served.shown() == set(range(8))


@pytest.mark.parametrize("host", ["127.0.0.1:8002", "localhost", "[::1]:8002", "[::1]"])
def test_names_of_this_machine(served: Served, host: str):
    assert served.client.get("/admin/status", headers={"host": host}).status_code == 200


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/admin/pause", 405), ("POST", "/admin/status", 405), ("POST", "/admin", 404),
     ("POST", "/v1/retrieve", 404), ("GET", "/admin/../etc/passwd", 404)],
)  # fmt: skip
def test_other_paths(served: Served, method: str, path: str, status: int):
    response = served.client.request(method, path)
    assert response.status_code == status


def test_who_changed_what_is_logged(served: Served, caplog):
    with caplog.at_level(logging.INFO, "grace"):
        served.post("pause", {"ad_ids": [1, 2]})
    (line,) = [record for record in caplog.records if record.message == "admin: pause"]
    assert line.fields["ads"] == 2
    assert line.fields["client"] == "testclient"


def with_log_on(served: Served, device: str) -> Callable[[], None]:
    log = served.folder / "pauses.log"
    log.symlink_to(device)
    return log.unlink


def test_the_disk_of_the_log_is_full(served: Served):
    """A pause that cannot be kept is no pause that was acknowledged; answers go on."""
    mend = with_log_on(served, "/dev/full")
    response = served.post("pause", {"ad_ids": [2]})
    check_refused(response, 503, "index", "No space left", "repeat it")
    assert served.shown() == set(range(8))
    mend()
    assert served.post("pause", {"ad_ids": [2]}).status_code == 200
    assert served.shown() == set(range(8)) - {2}


def test_the_log_is_damaged(served: Served):
    """Which ads are paused is unknown: nothing is shown until somebody repairs the line."""
    (served.folder / "pauses.log").write_text("garbage\n")
    check_refused(served.post("pause", {"ad_ids": [2]}), 503, "index", "line 1 is damaged")
    with pytest.raises(grace.errors.IndexFormatError, match="line 1"):
        served.shown()
    status = served.client.get("/admin/status")
    assert status.status_code == 200
    assert "line 1 is damaged" in status.json()["failure"]
    (served.folder / "pauses.log").unlink()
    assert served.shown() == set(range(8))
    assert served.client.get("/admin/status").json()["failure"] is None
