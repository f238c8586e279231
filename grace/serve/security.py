"""Who calls, and what every reply says to browsers. Tokens and keys come from files named in the
configuration; nothing from a request ever becomes a path."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import re
import ssl
import uuid
from collections.abc import Callable
from pathlib import Path

from grace.errors import ConfigError

MIN_TOKEN_CHARS = 16
# Probes carry no token, nor does a browser that loads a page; what a page asks for needs one.
OPEN_PATHS = frozenset({
    "/v1/health/live", "/v1/health/ready", "/v2/health/live", "/v2/health/ready",
    "/", "/docs", "/openapi.json",
})  # fmt: skip
HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-store"),
)
HSTS = (b"strict-transport-security", b"max-age=31536000")

_NAME = re.compile(r"[A-Za-z0-9._@-]{1,64}")
_CERTIFICATE = re.compile(rb"-----BEGIN (TRUSTED |X509 )?CERTIFICATE-----")
_PRIVATE_KEY = re.compile(rb"-----BEGIN ([A-Z]+ )?PRIVATE KEY-----")
_ENCRYPTED = re.compile(rb"BEGIN ENCRYPTED PRIVATE KEY|Proc-Type: 4,ENCRYPTED")
_LABEL = re.compile(r"[\x21-\x7e]{1,128}")


class Tokens:
    """Bearer tokens and whose they are.

    A file has a line `NAME TOKEN` for each; blank lines and lines that start with # do not count.
    A name may have several tokens, so that one can be replaced while both hold.
    """

    def __init__(self, tokens: dict[str, str]):
        """Keep hashes of `{token: name}`: equally long, so that a comparison tells nothing."""
        self._names = [(_digest(token), name) for token, name in tokens.items()]

    @staticmethod
    def load(path: str, key: str) -> Tokens:
        """Read a file of tokens.

        Args:
            path: of the file.
            key: of the configuration, for messages.

        Raises:
            ConfigError: if it cannot be read, holds none, or a line is wrong; tokens are not shown.
        """
        try:
            lines = Path(path).read_text(encoding="utf-8-sig").splitlines()
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) else "not UTF-8"
            raise ConfigError(f"{key}: {path} cannot be read: {why}") from None
        tokens: dict[str, str] = {}
        for number, line in enumerate(lines, start=1):
            if not line.strip() or line.startswith("#"):
                continue
            where = f"{key}: {path}, line {number}"
            name, *rest = line.split()
            if len(rest) != 1 or not _NAME.fullmatch(name):
                raise ConfigError(
                    f"{where}: expected NAME TOKEN, the name of letters, digits, ._@-"
                )
            if len(rest[0]) < MIN_TOKEN_CHARS or not _LABEL.fullmatch(rest[0]):
                raise ConfigError(
                    f"{where}: expected a token of {MIN_TOKEN_CHARS} to 128 ASCII characters"
                )
            if rest[0] in tokens:
                raise ConfigError(f"{where}: this token stands twice")
            tokens[rest[0]] = name
        if not tokens:
            raise ConfigError(f"{key}: {path} holds no token")
        return Tokens(tokens)

    def name_of(self, authorization: str | None) -> str | None:
        """Return whose token an `Authorization` header carries, or None.

        Every token is compared, each in constant time.
        """
        scheme, _, token = (authorization or "").partition(" ")
        digest, found = _digest(token.strip()), None
        for known, name in self._names:
            if hmac.compare_digest(known, digest):
                found = name
        return found if scheme.lower() == "bearer" else None


def client_identity(
    get_header: Callable[[str], str | None], peer: str, tokens: Tokens | None
) -> str | None:
    """Return who is asking, for turns in the queue, or None if a token is due and is not there.

    Args:
        get_header: of the call, by its lower-case name; HTTP headers or gRPC metadata.
        peer: address of the other end.
        tokens: where they are required.
    """
    if tokens is not None:
        return tokens.name_of(get_header("authorization"))
    named = get_header("x-client-id")
    return named if named and _LABEL.fullmatch(named) else peer


def is_open(path: str) -> bool:
    """Say whether a path needs no token even where tokens are required."""
    page = path.startswith("/playground/") and not path.startswith("/playground/api/")
    return page or path in OPEN_PATHS


def take_request_id(given: str | None) -> str:
    """Return the caller's request id if it can stand in a header and a log line, else a new one."""
    return given if given and _LABEL.fullmatch(given) else uuid.uuid4().hex


def is_loopback(host: str) -> bool:
    """Say whether only this machine can reach a server bound to `host`."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def tls_context(cert: str, key: str) -> ssl.SSLContext | None:
    """Return a context for TLS 1.2 and later, or None where no certificate is named.

    Raises:
        ConfigError: if the files cannot be read or do not belong together.
    """
    if not cert:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # Without a password here OpenSSL would ask the terminal for one.
    try:
        context.load_cert_chain(cert, key, password="")
    except (OSError, ssl.SSLError, ValueError) as error:
        why = (
            _why_not_pem("http.tls_cert", cert, _CERTIFICATE, "certificate")
            or _why_not_pem("http.tls_key", key, _PRIVATE_KEY, "private key")
            or f"http.tls_cert, http.tls_key: {cert} and {key} make no pair: {error}"
        )
        raise ConfigError(why) from None
    return context


def _why_not_pem(key: str, path: str, begin: re.Pattern[bytes], what: str) -> str | None:
    """Return what is wrong with a PEM file as far as its marks show it."""
    if not Path(path).is_file():
        return f"{key}: {path} is no file"
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        return f"{key}: {path} cannot be read: {error.strerror}"
    if not begin.search(content):
        return f"{key}: {path} holds no {what} in PEM"
    if begin is _PRIVATE_KEY and _ENCRYPTED.search(content):
        return f"{key}: {path} is encrypted; expected a private key without a password"
    return None


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()
