"""The targeting side of a request: its attributes at one point in time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from grace.catalog.schema import Attribute, Schema
from grace.catalog.values import attribute_value, describe, instant, range_value
from grace.errors import RequestError


@dataclass(frozen=True)
class Targeting:
    """What rules are checked against.

    Attributes:
        values: one entry per attribute of the schema: None where it is unknown, a float for a
            range, otherwise a tuple of distinct values (one value for a categorical attribute).
        at: microseconds since 1970-01-01 UTC.
    """

    values: tuple[float | tuple[str, ...] | None, ...]
    at: int


def parse_targeting(schema: Schema, attributes: object, at: object = None) -> Targeting:
    """Check a request's `attributes` and `at`.

    Args:
        schema: the index's schema.
        attributes: `{name: value | [values] | null}`; null, `[]` and absent all mean unknown.
        at: ISO 8601 time with its zone, or None for now.

    Raises:
        RequestError: naming the field, what was expected and what came.
    """
    if attributes is None:
        attributes = {}
    if not isinstance(attributes, dict):
        raise RequestError("attributes", f"expected an object, got {describe(attributes)}")
    for name in attributes:
        if name not in schema.names:
            known = ", ".join(schema.names) or "none"
            raise RequestError(f"attributes.{name}", f"is not in the schema, which has: {known}")
    values = tuple(_request_value(a, attributes.get(a.name)) for a in schema.attributes)
    try:
        moment = instant(datetime.now(UTC) if at is None else at, assume_utc=False)
    except ValueError as error:
        raise RequestError("at", str(error)) from None
    return Targeting(values, moment)


def _request_value(attribute: Attribute, raw: object) -> float | tuple[str, ...] | None:
    field = f"attributes.{attribute.name}"
    many: Sequence = raw if isinstance(raw, (list, tuple)) else [] if raw is None else [raw]
    if len(many) == 0:
        return None
    if attribute.kind != "set" and len(many) > 1:
        raise RequestError(
            field, f"a {attribute.kind} attribute takes one value, got {len(many)} of them"
        )
    try:
        if attribute.kind == "range":
            return range_value(many[0])
        return tuple(sorted(_distinct(many)))
    except ValueError as error:
        raise RequestError(field, str(error)) from None


def _distinct(values: Sequence) -> set[str]:
    try:
        texts = set(values)
        "".join(texts).encode()  # one look at all of them, where all are texts that UTF-8 can hold
    except (TypeError, UnicodeEncodeError):
        return {attribute_value(value) for value in values}
    return texts
