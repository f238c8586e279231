"""What the clients of a soak send, and which answers are right: a seeded mix, nothing measured."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass

from tests.serve.raw_http import request

BUSY = {429, 503, 504}  # refused for now, which any request may be
OVERSIZED = 50_000_000
WRONG = {
    "no JSON": (b'{"id": 1,', {400}),
    "invalid UTF-8": (b'{"id": "\xff\xfe"}', {400}),
    "deep JSON": (b'{"id": 1, "features": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", {400}),
    "NaN": (b'{"id": 1, "features": {"seed": NaN}}', {400}),
    "huge number": (b'{"id": 1, "attributes": {"age": 1e999}}', {400}),
    "unknown key": (b'{"id": 1, "atributes": {}}', {400}),
    "unknown attribute": (b'{"id": 1, "attributes": {"size": 1}}', {400}),
    "no id": (b'{"attributes": {}}', {400}),
    "no object": (b'"retrieve"', {400}),
    "wrong type": (b'{"id": 1, "attributes": {"age": "old"}}', {400}),
    "time without zone": (b'{"id": 1, "at": "2026-03-01T12:00:00"}', {400}),
    "top_k below 0": (b'{"id": 1, "top_k": -1}', {400}),
    "empty": (b"", {400}),
}


@dataclass(frozen=True)
class Shot:
    """One request.

    Attributes:
        kind: what it is a case of.
        content: all that the client sends.
        statuses: right ones; besides, `BUSY` always is.
        numbers: in the pool, of the requests whose answers are to be compared with the truth.
        ids: of these requests.
        leaves: whether the client goes without waiting.
        unfinished: whether there should be more of the request, so that none can follow.
    """

    kind: str
    content: bytes
    statuses: frozenset[int]
    numbers: tuple[int, ...] = ()
    ids: tuple[str, ...] = ()
    leaves: bool = False
    unfinished: bool = False


class Traffic:
    """An endless sequence of requests of one client.

    Args:
        seed: of the soak.
        client: its number.
        pool: the valid requests.
    """

    def __init__(self, seed: int, client: int, pool: list[dict]):
        self._draw = random.Random(f"traffic {seed} {client}")
        self._client, self._pool, self._sent = client, pool, 0

    def next(self) -> Shot:
        """Return the next request."""
        self._sent += 1
        share = self._draw.random()
        if share < 0.74:
            return self._valid({})
        if share < 0.78:
            return self._several()
        if share < 0.80:
            return self._valid({"x-timeout-ms": self._draw.choice(("1", "5"))}, "impatient")
        if share < 0.84:
            return self._leaving()
        return self._wrong()

    def _valid(self, headers: dict[str, str], kind: str = "valid") -> Shot:
        (number,), (name,), (raw,) = self._draw_requests(1)
        body = json.dumps(raw, ensure_ascii=False).encode()
        headers = {"x-client-id": f"client-{self._client % 4}"} | headers
        content = request("/v1/retrieve", body, headers=headers)
        return Shot(kind, content, frozenset({200, 400}), (number,), (name,))

    def _several(self) -> Shot:
        """Up to four in one body."""
        numbers, names, raws = self._draw_requests(self._draw.randint(1, 4))
        body = json.dumps({"requests": raws}).encode()
        return Shot("several", request("/v1/retrieve", body), frozenset({200}), numbers, names)

    def _draw_requests(self, count: int) -> tuple[tuple[int, ...], tuple[str, ...], list[dict]]:
        numbers = tuple(self._draw.randrange(len(self._pool)) for _ in range(count))
        names = tuple(f"{self._client}-{self._sent}-{part}" for part in range(count))
        pairs = zip(numbers, names, strict=True)
        return numbers, names, [self._pool[number] | {"id": name} for number, name in pairs]

    def _leaving(self) -> Shot:
        """A client that is gone before its answer, or in the middle of its request."""
        whole = self._valid({}).content
        most = len(whole) if self._draw.random() < 0.5 else self._draw.randrange(1, len(whole))
        return Shot("gone", whole[:most], frozenset(), leaves=True)

    def _wrong(self) -> Shot:
        kind = self._draw.choice((*WRONG, "too large", "no such path", "wrong method"))
        if kind == "too large":
            content = request("/v1/retrieve", b"{", length=OVERSIZED)
            return Shot(kind, content, frozenset({413}), unfinished=True)
        if kind == "no such path":
            return Shot(kind, request("/v1/retreive", b"{}"), frozenset({404}))
        if kind == "wrong method":
            return Shot(kind, request("/v1/retrieve", method="DELETE"), frozenset({405}))
        body, statuses = WRONG[kind]
        return Shot(kind, request("/v1/retrieve", body), frozenset(statuses))
