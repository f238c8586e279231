"""The four kinds of feature field: what a request may hold, and the numbers it becomes.

Every vocabulary (categories, bag entries, actions) is numbered alike: row 0 pads, row 1 stands for
a missing value, row 2 for a value that was not in the vocabulary, values follow in their order.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, ClassVar, NamedTuple

import numpy as np

from grace.catalog.values import checked_text, describe
from grace.errors import ConfigError, RequestError

PADDING, MISSING, UNKNOWN, FIRST_VALUE = 0, 1, 2, 3

MAX_STANDARD_DEVIATIONS = 8.0
"""Standardised numbers are cut here, so that no request reaches a weight as infinity."""

MAX_NUMBER = 1e100
"""Larger numbers are refused: their squares would not fit a float."""

MAX_LENGTH = 10_000
"""Longer bags and sequences are refused: each place of each request takes memory, filled or not."""

MAX_TIME_S = 1e11
"""Times end in the year 5138; milliseconds, taken for seconds, are past it, and refused."""


class Event(NamedTuple):
    """One behaviour: which item, the action's embedding row, seconds since 1970 (NaN: not said)."""

    ad_id: str | int
    action: int
    at_s: float


class Events(NamedTuple):
    """A history: per event, oldest first, what `Event` holds; int64 and float64 `[n]`."""

    ad_ids: list[str | int]
    actions: np.ndarray
    times_s: np.ndarray


@dataclasses.dataclass(frozen=True, kw_only=True)
class Vocabulary:
    """Known values, in the order of their embedding rows; None until fitted from training data."""

    values: tuple[str, ...] | None

    @property
    def num_rows(self) -> int:
        """Rows of the embedding table, the three special ones included."""
        return FIRST_VALUE + len(self.values)

    @functools.cached_property
    def rows(self) -> dict[str, int]:
        """Embedding rows by value."""
        return {value: FIRST_VALUE + i for i, value in enumerate(self.values)}

    def row(self, value: str) -> int:
        """Return the embedding row of a value."""
        return self.rows.get(value, UNKNOWN)


@dataclasses.dataclass(frozen=True, kw_only=True)
class CategoricalField:
    """One value out of a vocabulary: a string, or an int or bool standing for its JSON spelling."""

    kind: ClassVar[str] = "categorical"
    name: str
    vocabulary: Vocabulary

    @classmethod
    def from_dict(cls, table: dict[str, Any]) -> CategoricalField:
        return cls(name=table.pop("name"), vocabulary=_take_vocabulary(table, "values"))

    def to_dict(self) -> dict[str, Any]:
        return {"name": self.name, "kind": self.kind, "values": self.vocabulary.values}

    def fit(self, values: Iterable[Any]) -> CategoricalField:
        if self.vocabulary.values is not None:
            return self
        seen = {_category(self.name, value) for value in values if value is not None}
        return dataclasses.replace(self, vocabulary=Vocabulary(values=tuple(sorted(seen))))

    def parse(self, value: Any) -> int:
        """Return the embedding row of a request's value."""
        return MISSING if value is None else self.vocabulary.row(_category(self.name, value))


@dataclasses.dataclass(frozen=True, kw_only=True)
class NumericField:
    """A number, standardised with the mean and standard deviation of the training data."""

    kind: ClassVar[str] = "numeric"
    name: str
    mean: float | None
    std: float | None

    @classmethod
    def from_dict(cls, table: dict[str, Any]) -> NumericField:
        name, mean, std = table.pop("name"), table.pop("mean", None), table.pop("std", None)
        if (mean is None) != (std is None):
            raise ConfigError("`mean` and `std` are given together or not at all")
        if mean is not None and not (_is_number(mean) and _is_number(std) and std > 0):
            raise ConfigError(
                f"`mean` and `std` must be numbers, std > 0, got {describe(mean)}, {describe(std)}"
            )
        return cls(name=name, mean=mean, std=std)

    def to_dict(self) -> dict[str, Any]:
        return {"name": self.name, "kind": self.kind, "mean": self.mean, "std": self.std}

    def fit(self, values: Iterable[Any]) -> NumericField:
        if self.mean is not None:
            return self
        numbers = [_number(self.name, value) for value in values if value is not None]
        # A field that training never shows keeps the plain number.
        mean = math.fsum(numbers) / len(numbers) if numbers else 0.0
        deviations = [(number - mean) ** 2 for number in numbers]
        variance = math.fsum(deviations) / len(deviations) if deviations else 0.0
        return dataclasses.replace(self, mean=mean, std=math.sqrt(variance) or 1.0)

    def parse(self, value: Any) -> float:
        """Return the standardised number, NaN where it is missing."""
        if value is None:
            return math.nan
        standardised = (_number(self.name, value) - self.mean) / self.std
        return min(max(standardised, -MAX_STANDARD_DEVIATIONS), MAX_STANDARD_DEVIATIONS)


@dataclasses.dataclass(frozen=True, kw_only=True)
class BagField:
    """Several values out of a vocabulary in no order; past `max_length` the rest is not read."""

    kind: ClassVar[str] = "bag"
    name: str
    vocabulary: Vocabulary
    max_length: int

    @classmethod
    def from_dict(cls, table: dict[str, Any]) -> BagField:
        return cls(
            name=table.pop("name"),
            vocabulary=_take_vocabulary(table, "values"),
            max_length=_take_length(table, default=32),
        )

    def to_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "kind": self.kind,
            "values": self.vocabulary.values,
            "max_length": self.max_length,
        }

    def fit(self, values: Iterable[Any]) -> BagField:
        if self.vocabulary.values is not None:
            return self
        bags = (_list(self.name, value) for value in values if value is not None)
        seen = {_category(f"{self.name}[{i}]", v) for bag in bags for i, v in enumerate(bag)}
        return dataclasses.replace(self, vocabulary=Vocabulary(values=tuple(sorted(seen))))

    def parse(self, value: Any) -> list[int]:
        """Return the embedding rows of a bag; an empty bag is a missing one."""
        entries = [] if value is None else _list(self.name, value)
        rows = [
            self.vocabulary.row(_category(f"{self.name}[{i}]", entry))
            for i, entry in enumerate(entries)
        ]
        return rows[: self.max_length] or [MISSING]


@dataclasses.dataclass(frozen=True, kw_only=True)
class SequenceField:
    """Behaviour, oldest first: `[{ad_id, action?, at?}]`; a model sees the newest `max_length`."""

    kind: ClassVar[str] = "sequence"
    name: str
    actions: Vocabulary
    max_length: int

    @classmethod
    def from_dict(cls, table: dict[str, Any]) -> SequenceField:
        return cls(
            name=table.pop("name"),
            actions=_take_vocabulary(table, "actions"),
            max_length=_take_length(table, default=50),
        )

    def to_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "kind": self.kind,
            "actions": self.actions.values,
            "max_length": self.max_length,
        }

    def fit(self, values: Iterable[Any]) -> SequenceField:
        if self.actions.values is not None:
            return self
        seen: set[str] = set()
        for value in values:
            for i, event in enumerate(_list(self.name, value) if value is not None else []):
                if isinstance(event, Mapping) and event.get("action") is not None:
                    seen.add(_category(f"{self.name}[{i}].action", event["action"]))
        return dataclasses.replace(self, actions=Vocabulary(values=tuple(sorted(seen))))

    def parse(self, value: Any) -> Events:
        """Return every event of a sequence, checked: well-formed, and none older than the last."""
        entries = [] if value is None else _list(self.name, value)
        events: list[Event] = []
        newest_s = -math.inf
        for i, entry in enumerate(entries):
            event = self._parse_event(f"{self.name}[{i}]", entry)
            if event.at_s < newest_s:
                raise _wrong(f"{self.name}[{i}].at", "events oldest first", entry["at"])
            newest_s = newest_s if math.isnan(event.at_s) else event.at_s
            events.append(event)
        return Events(
            [event.ad_id for event in events],
            np.array([event.action for event in events], np.int64),
            np.array([event.at_s for event in events], np.float64),
        )

    def _parse_event(self, where: str, entry: Any) -> Event:
        if not isinstance(entry, Mapping):
            raise _wrong(where, "an object {ad_id, action?, at?}", entry)
        for key in entry:
            if key not in ("ad_id", "action", "at"):
                raise RequestError(f"features.{where}.{key}", "expected only ad_id, action and at")
        ad_id = entry.get("ad_id")
        if type(ad_id) not in (str, int):
            raise _wrong(f"{where}.ad_id", "a string or an integer", ad_id)
        action = entry.get("action")
        return Event(
            ad_id,
            MISSING if action is None else self.actions.row(_category(f"{where}.action", action)),
            math.nan if entry.get("at") is None else _time_s(f"{where}.at", entry["at"]),
        )


Field = CategoricalField | NumericField | BagField | SequenceField
FIELD_KINDS: dict[str, type[Field]] = {
    field.kind: field for field in (CategoricalField, NumericField, BagField, SequenceField)
}


def _take_vocabulary(table: dict[str, Any], key: str) -> Vocabulary:
    values = table.pop(key, None)
    if values is None:
        return Vocabulary(values=None)
    if not isinstance(values, list | tuple):
        raise ConfigError(f"`{key}` must be a list, got {describe(values)}")
    try:
        spelled = tuple(_category(key, value) for value in values)
    except RequestError as error:
        raise ConfigError(f"`{key}`: {error.message}") from None
    if len(set(spelled)) < len(spelled):
        raise ConfigError(f"`{key}` holds a value twice")
    return Vocabulary(values=spelled)


def _take_length(table: dict[str, Any], default: int) -> int:
    length = table.pop("max_length", default)
    if type(length) is not int or not 1 <= length <= MAX_LENGTH:
        raise ConfigError(
            f"`max_length` must be a positive integer of at most {MAX_LENGTH}, "
            f"got {describe(length)}"
        )
    return length


def _wrong(where: str, expected: str, value: Any) -> RequestError:
    return RequestError(f"features.{where}", f"expected {expected}, got {describe(value)}")


def _category(where: str, value: Any) -> str:
    if type(value) is str:
        try:
            return checked_text(value)
        except ValueError as error:
            raise RequestError(f"features.{where}", str(error)) from None
    if type(value) in (int, bool):
        try:
            return json.dumps(value)
        except ValueError:  # an integer of thousands of digits
            raise _wrong(where, "an integer of fewer digits", value) from None
    raise _wrong(where, "a string, an integer or a boolean", value)


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) <= MAX_NUMBER  # False for NaN, too


def _number(where: str, value: Any) -> float:
    if not _is_number(value):
        raise _wrong(where, f"a number from -{MAX_NUMBER:g} to {MAX_NUMBER:g}", value)
    return float(value)


def _list(where: str, value: Any) -> list[Any]:
    if not isinstance(value, list | tuple):
        raise _wrong(where, "a list", value)
    return list(value)


def _time_s(where: str, value: Any) -> float:
    if _is_number(value):
        time_s = float(value)
    else:
        try:
            moment = datetime.fromisoformat(value) if type(value) is str else None
        except ValueError:
            moment = None
        if moment is None or moment.tzinfo is None:
            raise _wrong(where, "an ISO time with a zone, or seconds since 1970", value)
        time_s = moment.timestamp()
    if abs(time_s) > MAX_TIME_S:
        raise _wrong(where, "a time before the year 5138, in seconds if a number", value)
    return time_s
