"""One request, checked."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from grace import _native
from grace.catalog.values import checked_text, describe
from grace.errors import RequestError
from grace.index import Index
from grace.index.rules import CompiledTargeting
from grace.retrieve.searching import Path

KEYS = ("id", "attributes", "features", "at", "top_k")
_UNKNOWN = ...  # stands for what only `parse_request` can look at


@dataclass(frozen=True)
class Request:
    """A request that can be answered.

    Attributes:
        id: echoed in the result.
        targeting: its attributes and time, in the index's numbers.
        features: what the model reads, as `Path.read` returns it.
        top_k: how many ads to return, or None for all.
    """

    id: str | int
    targeting: CompiledTargeting
    features: Any
    top_k: int | None


class RequestText(bytes):
    """A request as JSON, which whoever took it in has found to be right, without a key twice."""


def read_requests(raws: Sequence[object], index: Index, model: Path) -> list[Request | Exception]:
    """Check and read requests; where one is wrong, return what `parse_request` raises for it.

    What is plain is read natively, in one call for all; nothing but speed depends on it.

    Args:
        raws: requests, of any kind: texts of them are `RequestText`.
        index: the version that is asked.
        model: which must be able to read the features.
    """
    outcomes: list[Request | Exception] = [None] * len(raws)
    for read, as_text in ((_read_objects, False), (_read_texts, True)):
        rows = [row for row, raw in enumerate(raws) if isinstance(raw, RequestText) == as_text]
        if rows:
            for row, outcome in zip(
                rows, read([raws[row] for row in rows], index, model), strict=True
            ):
                outcomes[row] = outcome
    return outcomes


def _read_objects(raws: list[object], index: Index, model: Path) -> list[Request | Exception]:
    targetings = index.compile_plain(
        [_part(raw, "attributes") for raw in raws], [_part(raw, "at") for raw in raws]
    )
    features = model.read_plain([_part(raw, "features", {}) for raw in raws])
    return [
        _outcome(raw, index, model, *parts)
        for raw, *parts in zip(raws, targetings, features, strict=True)
    ]


def _read_texts(texts: list[RequestText], index: Index, model: Path) -> list[Request | Exception]:
    read = _native.RequestTexts(texts)
    parts = zip(texts, read.heads(), index.compile_texts(read), model.read_texts(read), strict=True)
    return [
        Request(head[0], targeting, features, head[1])
        if head is not None and targeting is not None and features is not None
        else _outcome(text, index, model, targeting, features)
        for text, head, targeting, features in parts
    ]


def _outcome(
    raw: object, index: Index, model: Path, targeting: CompiledTargeting | None, features: Any
) -> Request | Exception:
    try:
        return parse_request(_parsed(raw), index, model, targeting, features)
    except RequestError as error:
        # A new one, which was never raised: the frames of a traceback hold the whole batch and its
        # outcomes, this one too, until the garbage collector comes.
        return RequestError(error.field, error.message)
    except Exception as error:  # also what a model of somebody else's raises
        return error


def _parsed(raw: object) -> object:
    try:
        return json.loads(raw) if isinstance(raw, RequestText) else raw
    except ValueError as error:
        raise RequestError("request", f"not JSON: {error}") from None


def _part(raw: object, key: str, absent: object = None) -> object:
    if type(raw) is not dict:
        return _UNKNOWN
    value = raw.get(key)
    return absent if value is None else value


def parse_request(
    raw: object,
    index: Index,
    model: Path,
    targeting: CompiledTargeting | None = None,
    features: Any = None,
) -> Request:
    """Check a request as it came, and read it.

    Args:
        raw: `{"id", "attributes"?, "features"?, "at"?, "top_k"?}`; other keys are refused, as a
            misspelt one would otherwise be ignored.
        index: whose schema the attributes must follow.
        model: which must be able to read the features.
        targeting: what `Index.compile` would return, where it is there already.
        features: what `Path.read` would return, where it is there already.

    Raises:
        RequestError: naming the field, what was expected and what came.
    """
    if not isinstance(raw, dict):
        raise RequestError("request", f"expected an object, got {describe(raw)}")
    request_id(raw)
    for key in raw:
        if key not in KEYS:
            raise RequestError(str(key), f"unknown key; a request has {', '.join(KEYS)}")
    if targeting is None:
        targeting = index.compile(raw.get("attributes"), raw.get("at"))
    if features is None:
        features = model.read(_features(raw))
    return Request(raw["id"], targeting, features, check_top_k(raw.get("top_k")))


def _features(raw: dict) -> dict:
    features = {} if raw.get("features") is None else raw["features"]
    if not isinstance(features, dict):
        raise RequestError("features", f"expected an object, got {describe(features)}")
    return features


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
    """Return the id of a request or of its text, or None if it has none that could be read."""
    try:
        raw = _parsed(raw)
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
