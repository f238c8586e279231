"""The configuration: whatever is wrong is named by its key, before anything is loaded."""

from dataclasses import fields
from pathlib import Path
from typing import get_type_hints

import pytest
from web_cases import config

from grace.errors import ConfigError
from grace.serve.config import ServeConfig
from grace.serve.config_file import BOUNDS, CHOICES, PATHS, load_config, make_config

ROOT = Path(__file__).parent.parent.parent
KEYS = {
    f"{section}.{entry.name}"
    for section, kind in get_type_hints(ServeConfig).items()
    for entry in fields(kind)
}
NEEDED = {"index": {"directory": "i"}, "model": {"directory": "m"}}


def refused(**sections) -> str:
    with pytest.raises(ConfigError) as caught:
        config(**sections)
    return str(caught.value)


def test_the_example_is_the_defaults_and_shows_every_key():
    example = ROOT / "serve.toml"
    loaded = load_config(str(example), {})
    assert loaded == make_config(
        {
            "index": {"directory": str(ROOT / "runs/demo/index")},
            "model": {"directory": str(ROOT / "runs/demo/model")},
        }
    )
    section, shown = "", set()
    for line in example.read_text().splitlines():
        if line.startswith("["):
            section = line.strip("[]")
        elif "=" in line:
            shown.add(f"{section}.{line.lstrip('# ').split('=')[0].strip()}")
    assert shown == KEYS


def test_the_page_has_a_row_for_every_key():
    page = (ROOT / "docs" / "serving.md").read_text()
    assert [key for key in sorted(KEYS) if f"`{key}`" not in page] == []


def test_tables_of_bounds_speak_of_keys_that_exist():
    assert {*BOUNDS, *CHOICES, *PATHS} <= KEYS


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"htpp": {}}, "htpp: unknown key; did you mean http?"),
        ({"http": {"prot": 1}}, "http.prot: unknown key; did you mean port?"),
        ({"http": {"x": 1}}, "http.x: unknown key; known are host, port"),
        ({"http": 3}, "http: expected a table, [http], got 3"),
        ({"index": {}}, "index.directory: missing"),
        ({"http": {"port": "80"}}, "http.port: expected an integer from 0 to 65535, got '80'"),
        ({"http": {"port": True}}, "http.port: expected an integer"),
        ({"http": {"port": 65_536}}, "http.port: expected an integer from 0 to 65535, got 65536"),
        ({"http": {"port": 8.0}}, "http.port: expected an integer"),
        ({"http": {"host": "a\0b"}}, "http.host: expected a text"),
        ({"batching": {"max_batch": 33}}, "batching.max_batch: expected an integer from 1 to 32"),
        ({"batching": {"timeout_ms": float("nan")}}, "batching.timeout_ms: expected a number"),
        ({"model": {"directory": "m", "plan": "1,2"}}, "model.plan: expected a list of integers"),
        ({"model": {"directory": "m", "plan": [2, 2]}}, "model.plan: widths[0] must be 1"),
        ({"model": {"directory": "m", "num_sids": 8}}, "model.plan: expected widths"),
        ({"model": {"directory": "m", "matching": "all"}}, "model.matching: expected one of off"),
        ({"playground": {"enabled": 1}}, "playground.enabled: expected true or false, got 1"),
        ({"telemetry": {"log_level": "INFO"}}, "telemetry.log_level: expected one of debug"),
        ({"telemetry": {"otlp_endpoint": "junk"}}, "telemetry.otlp_endpoint: expected http://HOST"),
        ({"telemetry": {"otlp_endpoint": "http://"}}, "telemetry.otlp_endpoint: expected http:"),
        ({"telemetry": {"otlp_endpoint": "ftp://a"}}, "telemetry.otlp_endpoint: expected http:"),
        ({"telemetry": {"otlp_endpoint": "http://a:b"}}, "telemetry.otlp_endpoint: expected http:"),
        ({"http": {"tls_cert": "c"}}, "http.tls_key: expected a file"),
        ({"http": {"tls_key": "c"}}, "http.tls_cert: expected a file"),
        ({"admin": {"host": "0.0.0.0"}}, "admin.token_file: expected a file of tokens"),
        ({"grpc": {"port": 8000}}, "grpc.port: expected another port than http.port"),
        ({"http": {"max_requests": 300}}, "http.max_requests: expected at most"),
    ],
)
def test_what_is_wrong_is_named(sections, message):
    assert message in refused(**sections)


def test_several_ports_may_be_off_and_admin_may_be_anywhere_with_tokens():
    made = config(grpc={"port": 0}, admin={"port": 0, "host": "0.0.0.0"})
    assert (made.grpc.port, made.admin.port) == (0, 0)
    assert config(admin={"host": "::", "token_file": "t"}).admin.token_file == "t"
    assert config(admin={"host": "::1"}).admin.token_file == ""


def test_flags_go_before_the_file_and_paths_start_at_its_folder(tmp_path):
    (tmp_path / "serve.toml").write_text(
        '[index]\ndirectory = "i"\n[model]\ndirectory = "/m"\n[http]\nport = 1\nmax_depth = 9\n'
    )
    made = load_config(
        str(tmp_path / "serve.toml"), {"http.port": 2, "http.host": None, "model.plan": [1, 4]}
    )
    assert made.index.directory == str(tmp_path / "i")
    assert made.model.directory == "/m"
    assert (made.http.port, made.http.max_depth, made.http.host) == (2, 9, "127.0.0.1")
    assert made.model.plan == (1, 4)


def test_an_endpoint_for_traces_is_a_url():
    url = "https://collector:4318/v1/traces"
    assert config(telemetry={"otlp_endpoint": url}).telemetry.otlp_endpoint == url


def test_flags_alone_are_enough():
    assert load_config(None, {"index.directory": "i", "model.directory": "m"}) == config()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot be read"),
        (b"\xff", "not TOML"),
        (b"[http\n", "not TOML"),
        (b"a = " + b"[" * 5000, "not TOML"),
        (b"[http]\nport = 'x'\n[index]\n[model]\n", "serve.toml: index.directory: missing"),
        (b"http = 1", "serve.toml: index.directory: missing"),
        (b"index = 1", "serve.toml: index: expected a table"),
    ],
)
def test_a_bad_file_is_named(tmp_path, content, message):
    path = tmp_path / "serve.toml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=message):
        load_config(str(path), {})
