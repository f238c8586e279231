"""`grace retrieve`: odd requests fail alone, odd files are named."""

import json
import subprocess
import sys

import pytest
from model_cases import small_index, small_model
from typer.testing import CliRunner

from grace.cli import app
from grace.index.storage import save
from grace.model import save_model


@pytest.fixture
def folder(tmp_path):
    save(small_index().data, tmp_path / "index")
    save_model(small_model(seed=1), tmp_path / "model")
    return tmp_path


def run(folder, requests: bytes, *options: str):
    (folder / "requests.jsonl").write_bytes(requests)
    arguments = ["retrieve", "--index", str(folder / "index"), "--model", str(folder / "model"),
                 "--requests", str(folder / "requests.jsonl"), "--out",
                 str(folder / "out.jsonl"), *options]  # fmt: skip
    return CliRunner().invoke(app, arguments)


def lines(folder):
    return [json.loads(line) for line in (folder / "out.jsonl").read_bytes().splitlines()]


@pytest.mark.parametrize(
    "bad",
    [
        rb'{"id": 2, "\ud800": 1}',
        rb'{"id": 2, "attributes": {"\ud800": 1}}',
        rb'{"id": 2, "features": {"\ud800": 1}}',
        rb'{"id": 2, "features": {"clicks": [{"ad_id": 1, "\ud800": 1}]}}',
        b'{"id": 2, "attributes": {"age": 3, "age": 4}}',
        b'{"id": 2, "attributes": {"age": ' + b"[" * 900 + b"]" * 900 + b"}}",
        b'{"id": 2, "top_k": -' + b"9" * 4000 + b"}",
    ],
)
def test_an_odd_request_fails_alone(folder, bad):
    result = run(folder, b'{"id": 1}\n' + bad + b'\n{"id": 3}\n')
    assert result.exit_code == 0, result.output
    first, second, third = lines(folder)
    assert first["ads"]
    assert third["ads"]
    assert set(second) == {"id", "error"}


@pytest.mark.parametrize("value", ["fp8", "", "FLOAT32", "None"])
@pytest.mark.parametrize("matching", ["exact", "off"])
def test_a_wrong_precision_is_one_line(folder, matching, value):
    result = run(folder, b'{"id": 1}', "--precision", value, "--matching", matching)
    assert result.exit_code == 2
    wanted = f"precision must be one of auto, float32, bfloat16, float8, got {value!r}"
    assert result.output.strip() == f"error: {wanted}"
    assert not (folder / "out.jsonl").exists()


def test_an_item_id_that_utf8_cannot_hold_is_unknown(folder):
    result = run(folder, rb'{"id": 1, "features": {"clicks": [{"ad_id": "\ud800"}]}}')
    assert result.exit_code == 0, result.output
    (answer,) = lines(folder)
    assert answer.get("error") or answer["funnel"]["unknown_items"] == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--device", "abacus"], "device: cannot use 'abacus'"),
        (["--device", "meta"], "device: cannot use 'meta'"),
        (["--plan", "1,x"], "--plan: expected integers"),
        (["--matching", "some"], "matching must be one of"),
    ],
)
def test_a_wrong_option_answers_nothing(folder, options, message):
    result = run(folder, b'{"id": 1}', *options)
    assert result.exit_code == 2
    assert message in result.output
    assert not (folder / "out.jsonl").exists()


def test_an_output_that_cannot_be_is_found_before_the_work(folder):
    (folder / "out.jsonl").mkdir()
    result = run(folder, b'{"id": 1}')
    assert result.exit_code == 2
    assert "out.jsonl: is a directory; name a file" in result.output


def test_a_reader_that_has_seen_enough_is_no_error(folder):
    run(folder, b'{"id": 1}\n' * 400)
    command = (
        f"{sys.executable} -m grace retrieve --index {folder}/index --model {folder}/model "
        f"--requests {folder}/requests.jsonl --out - | head -1"
    )
    ended = subprocess.run(command, shell=True, capture_output=True, check=False)
    assert len(ended.stdout.splitlines()) == 1
    assert b"Traceback" not in ended.stderr
    assert b"error" not in ended.stderr
