"""Who may see what in the demo: one ad against one person, and shares over all of them."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files

import numpy as np

from grace.catalog import Attribute, RangeRule, Rule, Schema, Targeting, parse_targeting
from grace.catalog.rules import parse_rule
from grace.catalog.values import instant

Value = None | float | frozenset[str]


@dataclass(frozen=True)
class Eligibility:
    """Shares over all pairs of N ads and B requests.

    Attributes:
        pass_rates: "paused", "window" and each attribute → share of pairs that pass it.
        eligible_share: float64 [B], share of all ads that a request may see.
        targets_eligible: share of requests that may see their held-out item.
    """

    pass_rates: dict[str, float]
    eligible_share: np.ndarray
    targets_eligible: float


@functools.cache
def demo_schema() -> Schema:
    """Return the demo's targeting schema (`schema.yaml`)."""
    return Schema.load(str(files("grace.demo").joinpath("schema.yaml")))


def accepts(rule: Rule | None, value: Value) -> bool:
    """Say whether one rule accepts one value of a request; an unknown value is None."""
    if rule is None:
        return True
    if value is None:
        return False
    if isinstance(rule, RangeRule):
        return rule.min <= value <= rule.max
    included = not rule.include or not value.isdisjoint(rule.include)
    return included and value.isdisjoint(rule.exclude)


def refusal_reason(row: Mapping, request: Mapping) -> str | None:
    """Return the first check that refuses ("paused", "window", an attribute), None if none does."""
    schema = demo_schema()
    asked = parse_targeting(schema, request["attributes"], request["at"])
    if row["paused"]:
        return "paused"
    start, end = _window(row)
    if not start <= asked.at < end:
        return "window"
    for i, attribute in enumerate(schema.attributes):
        value = _value(asked, i)
        if not accepts(parse_rule(attribute, row["rules"].get(attribute.name)), value):
            return attribute.name
    return None


def measure_eligibility(rows: Sequence[Mapping], requests: Sequence[Mapping]) -> Eligibility:
    """Check every ad of the demo's catalogue against every request.

    Args:
        rows: N rows of the demo's catalogue.
        requests: B demo requests with targets.
    """
    schema = demo_schema()
    asked = [parse_targeting(schema, request["attributes"], request["at"]) for request in requests]
    at = np.array([targeting.at for targeting in asked])
    windows = np.array([_window(row) for row in rows])
    paused = np.array([row["paused"] for row in rows])
    passes = {
        "paused": np.repeat(~paused[:, None], len(asked), axis=1),
        "window": (windows[:, :1] <= at) & (at < windows[:, 1:]),
    }
    for i, attribute in enumerate(schema.attributes):
        values = [_value(targeting, i) for targeting in asked]
        passes[attribute.name] = _passes(attribute, rows, values)
    eligible = np.logical_and.reduce(list(passes.values()))
    position = {row["ad_id"]: i for i, row in enumerate(rows)}
    targets = [position[request["target"]] for request in requests]
    return Eligibility(
        pass_rates={check: float(passed.mean()) for check, passed in passes.items()},
        eligible_share=eligible.mean(axis=0),
        targets_eligible=float(eligible[targets, np.arange(len(asked))].mean()),
    )


def _passes(attribute: Attribute, rows: Sequence[Mapping], values: list[Value]) -> np.ndarray:
    """Return bool [N, B]; each distinct rule is tried once."""
    rule_ids: dict[Rule | None, int] = {}
    ids = [
        rule_ids.setdefault(parse_rule(attribute, row["rules"].get(attribute.name)), len(rule_ids))
        for row in rows
    ]
    return np.array([[accepts(rule, value) for value in values] for rule in rule_ids])[ids]


def _value(targeting: Targeting, i: int) -> Value:
    value = targeting.values[i]
    return frozenset(value) if isinstance(value, tuple) else value


def _window(row: Mapping) -> tuple[int, int]:
    if row["start"] is None:
        return np.iinfo(np.int64).min, np.iinfo(np.int64).max
    return instant(row["start"], assume_utc=True), instant(row["end"], assume_utc=True)
