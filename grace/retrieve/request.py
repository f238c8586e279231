"""One request, checked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from grace.catalog.values import checked_text, describe
from grace.errors import RequestError
from grace.index import Index
from grace.index.rules import CompiledTargeting
from grace.retrieve.searching import Path

KEYS = ("id", "attributes", "features", "at", "top_k")


@dataclass(frozen=True)
class Request:
    """A request that can be answered.

    Attributes:
        id: echoed in the result.
        targeting: its attributes and time, in the index's numbers.
        features: what the model reads, as `Path.parse` returns it.
        top_k: how many ads to return, or None for all.
    """

    id: str | int
    targeting: CompiledTargeting
    features: Any
    top_k: int | None


def parse_request(raw: object, index: Index, model: Path) -> Request:
    """Check a request as it came, and read it.

    Args:
        raw: `{"id", "attributes"?, "features"?, "at"?, "top_k"?}`; other keys are refused, as a
            misspelt one would otherwise be ignored.
        index: whose schema the attributes must follow.
        model: which must be able to read the features.

    Raises:
        RequestError: naming the field, what was expected and what came.
    """
    if not isinstance(raw, dict):
        raise RequestError("request", f"expected an object, got {describe(raw)}")
    request_id(raw)
    for key in raw:
        if key not in KEYS:
            raise RequestError(str(key), f"unknown key; a request has {', '.join(KEYS)}")
    targeting = index.compile(raw.get("attributes"), raw.get("at"))
    features = {} if raw.get("features") is None else raw["features"]
    if not isinstance(features, dict):
        raise RequestError("features", f"expected an object, got {describe(features)}")
    parsed = model.parse(features)
    return Request(raw["id"], targeting, parsed, check_top_k(raw.get("top_k")))


def request_id(raw: dict) -> str | int:
    """Return the request's id.

    Raises:
        RequestError: if it has none, or one that is neither a text nor an integer.
    """
    value = raw.get("id")
    if isinstance(value, bool) or not isinstance(value, (str, int)):
        raise RequestError("id", f"expected a string or an integer, got {describe(value)}")
    if isinstance(value, str):
        try:
            checked_text(value)
        except ValueError as error:
            raise RequestError("id", str(error)) from None
    return value


def readable_id(raw: object) -> str | int | None:
    """Return the request's id, or None if it has none that could be read."""
    try:
        return request_id(raw) if isinstance(raw, dict) else None
    except RequestError:
        return None


def check_top_k(value: object) -> int | None:
    """Return a number of ads, or None for all.

    Raises:
        RequestError: if it is no integer of at least 0.
    """
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise RequestError("top_k", f"expected an integer of at least 0, got {describe(value)}")
    return value
