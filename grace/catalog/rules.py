"""Targeting rules: what an advertiser asks of one attribute."""

from __future__ import annotations

import math
from dataclasses import dataclass

from grace.catalog.schema import Attribute
from grace.catalog.values import attribute_value, describe, range_value


@dataclass(frozen=True, order=True)
class SetRule:
    """A rule on a categorical or set attribute.

    A request passes if it has a value, one of its values is included (where the rule includes), and
    none is excluded.

    Attributes:
        include: accepted values, ascending, without repeats; empty where the rule only excludes.
        exclude: refused values, ascending, without repeats.
    """

    include: tuple[str, ...]
    exclude: tuple[str, ...]


@dataclass(frozen=True, order=True)
class RangeRule:
    """A rule on a range attribute: `min <= value <= max`; an open end is infinite."""

    min: float
    max: float


Rule = SetRule | RangeRule


class RuleFault(ValueError):
    """A wrong rule: `part` is the key below the attribute (or empty), `str()` what was expected."""

    def __init__(self, part: str, message: str):
        super().__init__(message)
        self.part = part


def parse_rule(attribute: Attribute, raw: object) -> Rule | None:
    """Check one attribute's rule as a file holds it.

    Args:
        attribute: whose rule it is.
        raw: `{include, exclude}` or `{min, max}`, each key optional and nullable; None is no rule.

    Returns:
        The rule, or None where every request passes.

    Raises:
        RuleFault: naming the part at fault.
    """
    if raw is None:
        return None
    if not isinstance(raw, dict):
        raise RuleFault("", f"expected an object, got {describe(raw)}")
    keys = ("min", "max") if attribute.kind == "range" else ("include", "exclude")
    for key in raw:
        # A Parquet struct gives every rule all the keys that any rule has, null where unused.
        if key not in keys and raw[key] is not None:
            raise RuleFault(
                str(key), f"unknown key; a {attribute.kind} rule has {keys[0]} and {keys[1]}"
            )
    if attribute.kind == "range":
        return _range_rule(raw)
    include = _values(attribute, "include", raw.get("include"))
    exclude = _values(attribute, "exclude", raw.get("exclude"))
    if raw.get("include") is not None and not include:
        raise RuleFault("include", "is empty, so no request could ever pass; leave it out for any")
    return SetRule(include, exclude) if include or exclude else None


def _range_rule(raw: dict) -> RangeRule | None:
    ends = {"min": -math.inf, "max": math.inf}
    for part in ends:
        if raw.get(part) is not None:
            try:
                ends[part] = range_value(raw[part])
            except ValueError as error:
                raise RuleFault(part, str(error)) from None
    if ends["min"] > ends["max"]:
        raise RuleFault("min", f"is above max ({ends['min']:g} > {ends['max']:g})")
    if ends == {"min": -math.inf, "max": math.inf}:
        return None
    # -0.0 and 0.0 are one number; adding 0.0 spells it one way.
    return RangeRule(ends["min"] + 0.0, ends["max"] + 0.0)


def _values(attribute: Attribute, part: str, raw: object) -> tuple[str, ...]:
    if raw is None:
        return ()
    if not isinstance(raw, (list, tuple)):
        raise RuleFault(part, f"expected a list of values, got {describe(raw)}")
    values = set()
    for position, value in enumerate(raw):
        try:
            values.add(attribute_value(value))
        except ValueError as error:
            raise RuleFault(f"{part}[{position}]", str(error)) from None
    if attribute.values is not None and not values <= attribute.allowed:
        stranger = min(values - attribute.allowed)
        raise RuleFault(
            part,
            f"{stranger!r} is not among the schema's values of {attribute.name} (in YAML, quote "
            "what looks like a number, a time or a boolean, such as NO)",
        )
    return tuple(sorted(values))
