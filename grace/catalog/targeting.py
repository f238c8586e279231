"""The targeting side of a request: its attributes at one point in time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property

from grace.catalog.schema import Attribute, Schema
from grace.catalog.values import attribute_value, describe, instant, range_value
from grace.errors import RequestError


@dataclass(frozen=True)
class Targeting:
    """What rules are checked against.

    Attributes:
        given: one entry per attribute of the schema: None where it is unknown, a float for a range,
            otherwise a tuple of values as the request wrote them, in any order, some perhaps twice.
        at: microseconds since 1970-01-01 UTC.
    """

    given: tuple[float | tuple[str | int, ...] | None, ...]
    at: int

    @cached_property
    def values(self) -> tuple[float | tuple[str, ...] | None, ...]:
        """The same with distinct texts, ascending (one text for a categorical attribute)."""
        return tuple(
            tuple(sorted({attribute_value(value) for value in given}))
            if isinstance(given, tuple)
            else given
            for given in self.given
        )


def parse_instant(at: object) -> int:
    """Return a request's `at`, or now where it has none, in microseconds since 1970-01-01 UTC.

    Raises:
        RequestError: if it is no time with a zone.
    """
    try:
        return instant(datetime.now(UTC) if at is None else at, assume_utc=False)
    except ValueError as error:
        raise RequestError("at", str(error)) from None


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
    given = tuple(_request_value(a, attributes.get(a.name)) for a in schema.attributes)
    return Targeting(given, parse_instant(at))


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
        return tuple(attribute_value(value) for value in many)
    except ValueError as error:
        raise RequestError(field, str(error)) from None
