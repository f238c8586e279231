"""Rows checked one by one: what words every error, and takes every spelling of a value."""

from __future__ import annotations

from array import array

import numpy as np
import pyarrow as pa

from grace.catalog.dictionary import Dictionary, RangeDictionary, ValueDictionary
from grace.catalog.parts import ARROW_TYPES, Part, Shape
from grace.catalog.rules import Rule, RuleFault, parse_rule
from grace.catalog.schema import Attribute
from grace.catalog.tables import ALWAYS
from grace.catalog.values import INT64_MAX, INT64_MIN, checked_text, describe, instant
from grace.errors import CatalogError

MAX_TOKEN = 2**31 - 2  # so that the largest token + 1 is an int32 too
MAX_LEVELS = 32


class RowChecker:
    """Gathers rows into parts. Invariant: every column has as many entries as rows added."""

    def __init__(self, dictionary: Dictionary, *, removals: bool):
        self.dictionary = dictionary
        self.removals = removals
        self._names = set(dictionary.schema.names)
        self._rules = [
            _SeenRules(attribute, rules)
            for attribute, rules in zip(dictionary.schema.attributes, dictionary.rules, strict=True)
        ]
        self.start(Shape())

    def start(self, shape: Shape) -> None:
        """Forget rows that nobody took; those that follow settle `shape`, or must fit it."""
        self.shape = shape
        for rules in self._rules:
            rules.start()
        self._ids: list[str | int] = []
        self._numbers = array("q")
        self._tokens = array("i")
        self._windows = array("q")
        self._paused = bytearray()
        self._removed: list[str | int] = []
        self._removed_numbers = array("q")

    def __len__(self) -> int:
        return len(self._numbers) + len(self._removed_numbers)

    def add(self, number: int, row: dict) -> None:
        """Check one row and append it.

        Raises:
            CatalogError: naming the row, the field, what was expected and what came.
        """
        ad_id = self._checked_id(number, row.get("ad_id"))
        if self.removals and _flag(number, row, "removed"):
            self._removed.append(ad_id)
            self._removed_numbers.append(number)
            return
        self._add_sid(number, row.get("sid"))
        raw = row.get("rules")
        if raw is None:
            raw = {}
        if not isinstance(raw, dict):
            raise CatalogError(f"expected an object, got {describe(raw)}", number, "rules")
        if not raw.keys() <= self._names:
            self._refuse_unknown_attribute(number, raw)
        for rules in self._rules:
            rules.add(number, raw.get(rules.attribute.name))
        self._windows.extend(_window(number, row.get("start"), row.get("end")))
        self._paused.append(_flag(number, row, "paused"))
        self._ids.append(ad_id)
        self._numbers.append(number)

    def take(self) -> Part:
        """Return the rows added since the last call."""
        id_type = ARROW_TYPES[self.shape.id_kind or int]
        num_levels = self.shape.num_levels if self._numbers else 0
        windows = np.array(self._windows, np.int64).reshape(-1, 2)
        part = Part(
            numbers=np.array(self._numbers, np.int64),
            ad_ids=pa.array(self._ids, id_type),
            sids=np.array(self._tokens, np.int32).reshape(len(self._numbers), num_levels),
            signatures=self.dictionary.sign([rules.take() for rules in self._rules], windows),
            paused=np.array(self._paused, np.bool_),
            removed_numbers=np.array(self._removed_numbers, np.int64),
            removed=pa.array(self._removed, id_type),
        )
        self.start(self.shape)
        return part

    def _checked_id(self, number: int, ad_id: object) -> str | int:
        if isinstance(ad_id, np.integer):
            ad_id = int(ad_id)
        kind = type(ad_id)
        if kind not in (str, int):
            raise CatalogError(
                f"expected a string or an integer, got {describe(ad_id)}", number, "ad_id"
            )
        fault = self.shape.id_fault(number, ad_id)
        if fault is not None:
            raise fault
        if kind is int and not INT64_MIN <= ad_id <= INT64_MAX:
            raise CatalogError(f"expected a 64-bit integer, got {ad_id}", number, "ad_id")
        if kind is str:
            if not ad_id:
                raise CatalogError("expected an id, got an empty string", number, "ad_id")
            try:
                checked_text(ad_id)
            except ValueError as error:
                raise CatalogError(str(error), number, "ad_id") from None
        self.shape.settle_id(number, ad_id)
        return ad_id

    def _add_sid(self, number: int, sid: object) -> None:
        if sid is None:
            raise CatalogError("is missing; make SIDs first with `grace sid fit`", number, "sid")
        if isinstance(sid, np.ndarray):
            sid = sid.tolist()
        if not isinstance(sid, (list, tuple)) or not 1 <= len(sid) <= MAX_LEVELS:
            raise CatalogError(
                f"expected a list of 1 to {MAX_LEVELS} tokens, got {describe(sid)}", number, "sid"
            )
        fault = self.shape.sid_fault(number, len(sid))
        if fault is not None:
            raise fault
        self.shape.settle_sid(number, len(sid))
        for level, token in enumerate(sid):
            whole = isinstance(token, (int, np.integer)) and not isinstance(token, bool)
            if not whole or not 0 <= token <= MAX_TOKEN:
                raise CatalogError(
                    f"expected an integer from 0 to {MAX_TOKEN}, got {describe(token)}",
                    number,
                    f"sid[{level}]",
                )
        self._tokens.extend(sid)

    def _refuse_unknown_attribute(self, number: int, raw: dict) -> None:
        for name, rule in raw.items():
            if name not in self._names and rule is not None:
                known = ", ".join(self.dictionary.schema.names) or "none"
                raise CatalogError(
                    f"is not in the schema, which has: {known}", number, f"rules.{name}"
                )


class _SeenRules:
    """The rules of one attribute as they are spelled; new ones go to the dictionary in bulk."""

    def __init__(self, attribute: Attribute, dictionary: RangeDictionary | ValueDictionary):
        self.attribute = attribute
        self.dictionary = dictionary
        # Raw rules repeat; `repr` tells 1, True and "1" apart, which hashing would not.
        self._seen = {repr(None): 0}
        self._new: list[Rule | None] = []
        self._ids = np.zeros(1, np.int32)  # per spelling; 0 is no rule
        self.start()

    def start(self) -> None:
        self._column = array("i")

    def add(self, number: int, raw: object) -> None:
        key = repr(raw)
        spelling = self._seen.get(key)
        if spelling is None:
            try:
                self._new.append(parse_rule(self.attribute, raw))
            except RuleFault as fault:
                field = ".".join(
                    part for part in ("rules", self.attribute.name, fault.part) if part
                )
                raise CatalogError(str(fault), number, field) from None
            spelling = self._seen[key] = len(self._seen)
        self._column.append(spelling)

    def take(self) -> np.ndarray:
        """Return int32 [n], the rules added since the last call, as the dictionary numbers them."""
        if self._new:
            self._ids = np.append(self._ids, self.dictionary.add_rules(self._new))
            self._new = []
        return self._ids[np.array(self._column, np.int32)]


def _window(number: int, start: object, end: object) -> tuple[int, int]:
    if start is None and end is None:
        return ALWAYS
    ends = list(ALWAYS)
    for i, (field, value) in enumerate((("start", start), ("end", end))):
        if value is not None:
            try:
                ends[i] = instant(value, assume_utc=True)
            except ValueError as error:
                raise CatalogError(str(error), number, field) from None
    if ends[0] > ends[1]:
        raise CatalogError(f"is after end ({start} > {end})", number, "start")
    return ends[0], ends[1]


def _flag(number: int, row: dict, field: str) -> bool:
    value = row.get(field)
    if value is not None and not isinstance(value, (bool, np.bool_)):
        raise CatalogError(f"expected true or false, got {describe(value)}", number, field)
    return bool(value)
