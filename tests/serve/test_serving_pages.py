"""What README and docs/serving.md tell people to type works."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from model_cases import small_config

import grace
from grace.catalog import Schema
from grace.model import EncoderDecoder, FeatureSpec, save_model

ROOT = Path(__file__).parent.parent.parent
SHELL = {"bash": shutil.which("bash"), "curl": shutil.which("curl")}


def section(page: str, heading: str) -> list[str]:
    """The shell blocks of a section."""
    text = (ROOT / page).read_text(encoding="utf-8").split(f"## {heading}\n")[1].split("\n## ")[0]
    return re.findall(r"```sh\n(.*?)```", text, re.S)


def make_demo(folder: Path) -> None:
    """Write what `grace demo` leaves, small: the same schema, fields and layout."""
    rows = [{"ad_id": i, "sid": [i // 25, i // 5 % 5, i % 5], "rules": {}} for i in range(125)]
    grace.build_index(rows, Schema.load(ROOT / "grace/demo/schema.yaml"), folder / "index")
    spec = FeatureSpec.load(ROOT / "grace/demo/features.yaml")
    users = [{"age": 30, "occupation": "writer", "state": "US/MN", "history": []}] * 3
    torch.manual_seed(0)
    save_model(EncoderDecoder(small_config(), spec.fit(users)), folder / "model")
    (folder / "requests.jsonl").write_text('{"id": "7", "attributes": {"age": 20}}\n{"id": "8"}\n')


@pytest.mark.skipif(not all(SHELL.values()), reason="needs bash and curl")
def test_the_pages_lines_run_against_a_real_process(tmp_path):
    make_demo(tmp_path / "runs/demo")
    (tmp_path / "bin").mkdir()
    shim = tmp_path / "bin/grace"
    shim.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m grace "$@"\n')
    shim.chmod(0o755)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    path = f"{tmp_path / 'bin'}:{os.environ['PATH']}"
    environment = os.environ | {"PATH": path, "PYTHONPATH": str(ROOT)}
    serve, ask = (block.replace("8000", port) for block in section("README.md", "Serve it"))
    (ask_more,) = section("docs/serving.md", "Asking")
    with subprocess.Popen(
        ["bash", "-c", f"exec {serve.strip()} --grpc-port 0 --admin-port 0"], cwd=tmp_path,
        env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as server:  # fmt: skip
        try:
            lines = [server.stdout.readline(), server.stdout.readline()]
            assert lines[0].startswith("version "), server.stderr.read()
            assert lines[1] == f"http  http://127.0.0.1:{port}\n"
            told = [
                subprocess.run(
                    ["bash", "-ec", block], cwd=tmp_path, env=environment, stdout=subprocess.PIPE,
                    text=True, check=True,
                ).stdout
                for block in (ask, ask_more.replace("8000", port))
            ]  # fmt: skip
            server.send_signal(signal.SIGTERM)
            _, log = server.communicate(timeout=60)
        finally:
            server.kill()
    assert server.returncode == 0, log
    decoder = json.JSONDecoder()
    first, end = decoder.raw_decode(told[0])
    second, end = decoder.raw_decode(told[0], end)
    assert (first["id"], len(first["ads"]), second["id"]) == ("u1", 3, "7")
    assert 'grace_requests_total{outcome="ok"} 2.0' in told[0][end:]
    assert json.loads(told[1])["funnel"]["returned_ads"] == 3
    logged = [json.loads(line) for line in log.splitlines()]
    assert [line["status"] for line in logged if "status" in line] == [200] * 4


def test_the_pages_python_runs(tmp_path, monkeypatch):
    make_demo(tmp_path)
    monkeypatch.chdir(tmp_path)
    page = (ROOT / "docs/serving.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", page, re.S)
    scope: dict = {}
    exec(code, scope)
    assert scope["app"].routes


def test_every_metric_is_in_the_table(client):
    page = (ROOT / "docs/serving.md").read_text(encoding="utf-8")
    names = re.findall(r"^# TYPE (grace_\w+) ", client.get("/metrics").text, re.M)
    assert names
    assert [name for name in names if f"`{name}`" not in page] == []
