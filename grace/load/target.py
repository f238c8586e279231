"""Where requests go, and how one looks on the wire."""

from __future__ import annotations

import http.client
import socket
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from urllib.parse import urlsplit

from grace.catalog.values import describe
from grace.errors import ConfigError, DataError

DEFAULT_PATH = "/v1/retrieve"
OWN_HEADERS = ("content-length", "transfer-encoding", "connection")


@dataclass(frozen=True)
class Target:
    """A server.

    Attributes:
        host, port: of the server.
        path: what is posted to.
        tls: whether the connection is encrypted.
        headers: more lines of each request.
        ca: a file of certificates to trust in place of the system's.
    """

    host: str
    port: int
    path: str
    tls: bool
    headers: tuple[tuple[str, str], ...] = ()
    ca: str | None = None

    @classmethod
    def parse(cls, url: str, headers: Sequence[str] = (), ca: str | None = None) -> Target:
        """Read `http://HOST[:PORT][/PATH]` and lines `name: value`.

        Raises:
            ConfigError: naming the option, what was expected and what came.
        """
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError as error:
            raise ConfigError(f"--url: {error}, got {url!r}") from None
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(f"--url: expected http://HOST:PORT[/PATH], got {url!r}")
        try:
            host = parts.hostname.encode("idna").decode()
        except UnicodeError:  # an empty label, or one that is too long
            raise ConfigError(f"--url: {describe(parts.hostname)} is no host name") from None
        tls = parts.scheme == "https"
        path = parts.path if parts.path not in ("", "/") else DEFAULT_PATH
        path += f"?{parts.query}" if parts.query else ""
        if not path.isascii() or not path.isprintable() or " " in path:
            raise ConfigError(f"--url: the path must be percent-encoded, got {path!r}")
        port = port or (443 if tls else 80)
        return cls(host, port, path, tls, tuple(map(_header, headers)), ca)

    @property
    def url(self) -> str:
        """The address in full."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http{'s' if self.tls else ''}://{host}:{self.port}{self.path}"

    @cached_property
    def address(self) -> tuple[str, int]:
        """The server's number and port, looked up once.

        Raises:
            ConfigError: if there is no such host.
        """
        try:
            found = socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)
        except OSError as error:
            raise ConfigError(f"--url: {self.host}: {error.strerror}") from None
        return found[0][4][:2]

    def payload(self, body: bytes) -> bytes:
        """Return one request as bytes for the wire."""
        lines = [f"POST {self.path} HTTP/1.1", f"host: {self.host}:{self.port}"]
        lines += [f"{name}: {value}" for name, value in self._all_headers.items()]
        lines += [f"content-length: {len(body)}", "", ""]
        return "\r\n".join(lines).encode("latin-1") + body

    def try_out(self, body: bytes, timeout_s: float) -> None:
        """Send one request, before there is any load.

        Raises:
            DataError: if there is no server, or none that takes requests at this address. A
                request that it finds wrong, and a server that is too busy, are no such fault.
        """
        if self.tls:
            connection = http.client.HTTPSConnection(
                self.host, self.port, timeout=timeout_s, context=self.tls_context()
            )
        else:
            connection = http.client.HTTPConnection(self.host, self.port, timeout=timeout_s)
        try:
            connection.request("POST", self.path, body, self._all_headers)
            answer = connection.getresponse()
            status, text = answer.status, answer.read(1000).decode("utf-8", "replace").strip()
        except (OSError, http.client.HTTPException) as error:
            reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
            raise DataError(f"{self.url}: cannot be asked: {reason}") from None
        finally:
            connection.close()
        if status in (401, 403, 404, 405) or status in range(300, 400):
            said = f": {text}" if text else ""
            raise DataError(f"{self.url}: answers requests with status {status}{said}")

    def tls_context(self) -> ssl.SSLContext | None:
        """Return what checks the server's certificate; None where nothing is encrypted.

        Raises:
            ConfigError: if the file of certificates cannot be used.
        """
        if not self.tls:
            return None
        try:
            return ssl.create_default_context(cafile=self.ca)
        except OSError as error:
            raise ConfigError(f"--ca: {self.ca}: {error.strerror or error}") from None

    @property
    def _all_headers(self) -> dict[str, str]:
        return {"content-type": "application/json", **dict(self.headers)}


def _header(line: str) -> tuple[str, str]:
    name, colon, value = line.partition(":")
    name, value = name.strip().lower(), value.strip()
    token = name.replace("-", "").replace("_", "")
    if not colon or not (token.isascii() and token.isalnum()) or not value.isprintable():
        raise ConfigError(f"--header: expected 'name: value', got {line!r}")
    if not value.isascii():
        raise ConfigError(f"--header: expected ASCII, got {line!r}")
    if name in OWN_HEADERS:
        raise ConfigError(f"--header: {name} is the generator's own")
    return name, value
