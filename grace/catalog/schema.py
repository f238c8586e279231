"""The targeting schema: which attributes rules and requests may speak of."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass
from functools import cached_property

from grace.catalog.values import attribute_value, describe, printable
from grace.errors import SchemaError
from grace.files import read_yaml

KINDS = ("categorical", "range", "set")
# One bit per attribute, next to those of RESERVED, in the 64-bit word of failed checks.
MAX_ATTRIBUTES = 61
# Names that the funnel's counts already use.
RESERVED = ("paused", "bid_off", "window")


@dataclass(frozen=True)
class Attribute:
    """One targeting dimension.

    Attributes:
        name: as rules and requests spell it.
        kind: `categorical` (one request value of few), `range` (one number) or `set` (any of many).
        values: the values that rules may name, or None where any may be named.
    """

    name: str
    kind: str
    values: tuple[str, ...] | None = None

    @cached_property
    def allowed(self) -> frozenset[str]:
        """`values` as a set; empty where any may be named."""
        return frozenset(self.values or ())

    def to_dict(self) -> dict:
        """Return the YAML form."""
        values = {} if self.values is None else {"values": list(self.values)}
        return {"name": self.name, "kind": self.kind} | values


@dataclass(frozen=True)
class Schema:
    """The attributes of a catalogue, in the order in which checks are counted."""

    attributes: tuple[Attribute, ...]

    @staticmethod
    def load(path: str | os.PathLike) -> Schema:
        """Read a schema from a YAML file.

        Raises:
            SchemaError: if the file is missing, no YAML, or does not describe attributes.
        """
        try:
            content = read_yaml(path)
        except (OSError, ValueError) as error:
            raise SchemaError(f"{path}: cannot be read as a YAML schema: {error}") from None
        try:
            return Schema.from_dict(content)
        except SchemaError as error:
            raise SchemaError(f"{path}: {error}") from None

    @staticmethod
    def from_dict(content: dict) -> Schema:
        """Check and return a schema given as `{"attributes": [{name, kind, values?}, ...]}`.

        Raises:
            SchemaError: naming the attribute and the key at fault.
        """
        if not isinstance(content, dict) or set(content) != {"attributes"}:
            raise SchemaError(
                "expected one key, `attributes`, with a list of {name, kind, values?}"
            )
        entries = content["attributes"]
        if not isinstance(entries, list):
            raise SchemaError(f"attributes: expected a list, got {describe(entries)}")
        attributes = tuple(_attribute(i, entry) for i, entry in enumerate(entries))
        names = [attribute.name for attribute in attributes]
        for name in names:
            if names.count(name) > 1:
                raise SchemaError(f"attributes: {name!r} is declared twice")
        if len(attributes) > MAX_ATTRIBUTES:
            raise SchemaError(
                f"attributes: at most {MAX_ATTRIBUTES} can be checked, got {len(attributes)}"
            )
        return Schema(attributes)

    def to_dict(self) -> dict:
        """Return the form that `from_dict` reads."""
        return {"attributes": [attribute.to_dict() for attribute in self.attributes]}

    @property
    def names(self) -> tuple[str, ...]:
        """The attributes' names, in order."""
        return tuple(attribute.name for attribute in self.attributes)


def _attribute(position: int, entry: object) -> Attribute:
    where = f"attributes[{position}]"
    if not isinstance(entry, dict):
        raise SchemaError(f"{where}: expected {{name, kind, values?}}, got {describe(entry)}")
    unknown = set(entry) - {"name", "kind", "values"}
    if unknown:
        raise SchemaError(f"{where}: unknown key {min(map(str, unknown))!r}")
    name, kind, values = entry.get("name"), entry.get("kind"), entry.get("values")
    if not isinstance(name, str) or not name:
        raise SchemaError(f"{where}.name: expected a name, got {describe(name)}")
    if printable(name) != name:
        raise SchemaError(f"{where}.name: expected text that UTF-8 can hold, got {describe(name)}")
    if name in RESERVED:
        raise SchemaError(f"{where}.name: {name!r} is reserved for the ad's own state")
    if kind not in KINDS:
        raise SchemaError(f"{where}.kind: expected one of {', '.join(KINDS)}, got {describe(kind)}")
    if values is None:
        return Attribute(name, kind)
    if kind == "range":
        raise SchemaError(f"{where}.values: a range has no list of values; remove it")
    if not isinstance(values, list) or not values:
        raise SchemaError(f"{where}.values: expected a list of values, got {describe(values)}")
    try:
        spelled = tuple(attribute_value(value) for value in values)
    except ValueError as error:
        raise SchemaError(f"{where}.values: {error}") from None
    for value, count in Counter(spelled).items():
        if count > 1:
            raise SchemaError(f"{where}.values: {value!r} is listed twice")
    return Attribute(name, kind, spelled)
