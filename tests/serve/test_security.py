"""Tokens, identity, TLS, headers."""

from http.client import HTTPSConnection
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from starlette.testclient import TestClient
from tls_cases import issue
from web_cases import REQUEST, TOKEN, config, served

from grace.errors import ConfigError
from grace.serve.app import build_app
from grace.serve.security import OPEN_PATHS, Tokens, client_identity, is_loopback, tls_context


@pytest.fixture
def token_file(tmp_path):
    path = tmp_path / "tokens"
    path.write_text(f"# who may ask\n\nann {TOKEN}\nbob another-token-of-some-length\n")
    return str(path)


@pytest.fixture
def guarded(shared, token_file):
    return TestClient(build_app(shared[0], config(http={"token_file": token_file})))


@pytest.mark.parametrize(
    "header",
    [
        None,
        "",
        "Bearer",
        "Bearer x",
        f"Basic {TOKEN}",
        f"Bearer {TOKEN}x",
        f"Bearer {TOKEN[:-1]}",
        TOKEN,
    ],
)
def test_without_a_known_token_there_is_no_answer(guarded, header):
    headers = {} if header is None else {"authorization": header}
    for response in (
        guarded.post("/v1/retrieve", json=REQUEST, headers=headers),
        guarded.get("/v1/model", headers=headers),
        guarded.get("/metrics", headers=headers),
        guarded.get("/no/such/page", headers=headers),
    ):
        assert response.status_code == 401
        assert response.headers["www-authenticate"] == "Bearer"
        assert response.json()["error"]["field"] == "authorization"


def test_with_a_token_there_is_and_probes_need_none(guarded):
    headers = {"authorization": f"bearer {TOKEN}"}
    assert guarded.post("/v1/retrieve", json=REQUEST, headers=headers).status_code == 200
    for path in OPEN_PATHS:
        assert guarded.get(path).status_code != 401
    assert guarded.get("/v1/health/ready").status_code == 200
    assert guarded.get("/playground/main.js").status_code != 401
    assert guarded.get("/playground/api/people").status_code == 401


def test_a_client_is_its_token_then_its_word_then_its_address(token_file):
    tokens = Tokens.load(token_file, "http.token_file")
    named = {"authorization": f"Bearer {TOKEN}", "x-client-id": "eve"}
    assert client_identity(named.get, "1.2.3.4", tokens) == "ann"
    assert client_identity({"x-client-id": "eve"}.get, "1.2.3.4", tokens) is None
    assert client_identity({"x-client-id": "eve"}.get, "1.2.3.4", None) == "eve"
    assert client_identity({"x-client-id": "e\nve"}.get, "1.2.3.4", None) == "1.2.3.4"
    assert client_identity({}.get, "1.2.3.4", None) == "1.2.3.4"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "holds no token"),
        ("ann", "line 1: expected NAME TOKEN"),
        (f"a/b {TOKEN}", "line 1: expected NAME TOKEN"),
        ("ann short", "line 1: expected a token of 16"),
        ("ann tökens-of-some-length", "line 1: expected a token of 16"),
        (f"ann {TOKEN}\nbob {TOKEN}", "line 2: this token stands twice"),
        (b"\xff", "cannot be read: not UTF-8"),
        (None, "cannot be read: No such file"),
    ],
)
def test_a_bad_token_file_is_named_without_its_tokens(tmp_path, content, message):
    path = tmp_path / "tokens"
    if content is not None:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ConfigError) as caught:
        Tokens.load(str(path), "http.token_file")
    assert message in str(caught.value)
    assert str(caught.value).startswith("http.token_file: ")
    assert TOKEN not in str(caught.value)


def test_every_reply_tells_browsers_what_not_to_do(client):
    for path in ("/v1/model", "/nothing", "/docs", "/metrics"):
        headers = client.get(path).headers
        assert headers["x-content-type-options"] == "nosniff"
        assert "default-src 'none'" in headers["content-security-policy"]
        assert headers["cache-control"] == "no-store"
        assert len(headers.get_list("content-security-policy")) == 1
        assert "server" not in headers


@pytest.mark.parametrize(
    ("host", "loopback"),
    [("127.0.0.1", True), ("127.9.9.9", True), ("::1", True), ("localhost", True),
     ("0.0.0.0", False), ("::", False), ("example.org", False), ("", False)],
)  # fmt: skip
def test_loopback(host, loopback):
    assert is_loopback(host) is loopback


def test_tls_serves_and_names_bad_files(shared, tmp_path):
    cert, key, context = issue(tmp_path)
    made = config(http={"tls_cert": cert, "tls_key": key})
    with served(build_app(shared[0], made), made) as port:
        connection = HTTPSConnection("127.0.0.1", port, context=context)
        connection.request("GET", "/v1/health/live")
        response = connection.getresponse()
        assert response.status == 200
        assert "max-age" in response.headers["strict-transport-security"]
        connection.close()
    (tmp_path / "other").mkdir()
    _, other, _ = issue(tmp_path / "other")
    locked = str(tmp_path / "locked.pem")
    private = serialization.load_pem_private_key(Path(key).read_bytes(), None)
    secret = serialization.BestAvailableEncryption(b"secret")
    pem, pkcs8 = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    Path(locked).write_bytes(private.private_bytes(pem, pkcs8, secret))
    for files, message in (
        ((cert, other), r"^http\.tls_cert, http\.tls_key: .*make no pair"),
        ((key, cert), r"^http\.tls_cert: .*key\.pem holds no certificate"),
        ((cert, cert), r"^http\.tls_key: .*cert\.pem holds no private key"),
        ((cert, locked), r"^http\.tls_key: .*locked\.pem is encrypted"),
        ((cert, str(tmp_path / "none")), r"^http\.tls_key: .*none is no file"),
    ):
        with pytest.raises(ConfigError, match=message):
            tls_context(*files)


def test_a_file_of_tokens_may_begin_with_a_byte_order_mark(tmp_path):
    path = tmp_path / "tokens"
    path.write_bytes(b"\xef\xbb\xbf" + f"ann {TOKEN}\n".encode())
    assert Tokens.load(str(path), "http.token_file").name_of(f"Bearer {TOKEN}") == "ann"
