"""The distinct values, rules, windows and signatures of a catalogue, numbered as they come."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from grace._native import RecordSet, TextSet, ValueRuleSet
from grace.catalog.rules import RangeRule, Rule
from grace.catalog.schema import Attribute, Schema
from grace.catalog.tables import ALWAYS, RangeTable, ValueTable


@dataclass(frozen=True)
class Lists:
    """Rows of value ids: int64 [n + 1] offsets into int32 ids."""

    offsets: np.ndarray
    ids: np.ndarray

    @staticmethod
    def empty(num_rows: int) -> Lists:
        """Return rows that name nothing."""
        return Lists(np.zeros(num_rows + 1, np.int64), np.empty(0, np.int32))


class RangeDictionary:
    """The distinct rules of one range attribute; 0 is no rule."""

    def __init__(self) -> None:
        self._ends = RecordSet(16)
        self.add(np.array([-np.inf]), np.array([np.inf]))

    def add(self, low: np.ndarray, high: np.ndarray) -> np.ndarray:
        """Return int32 [n], the rules with the given ends, float64 [n] each, infinite when open."""
        # -0.0 and 0.0 are one number; adding 0.0 spells it one way.
        return self._ends.add(_bytes(np.stack([low, high], 1) + 0.0))

    def add_rules(self, rules: Sequence[Rule | None]) -> np.ndarray:
        """Return the numbers of rules, int32 [n]."""
        ends = [
            (rule.min, rule.max) if isinstance(rule, RangeRule) else (-np.inf, np.inf)
            for rule in rules
        ]
        return self.add(*np.array(ends, np.float64).reshape(-1, 2).T)

    def merge(self, other: RangeDictionary) -> np.ndarray:
        """Add another's rules and return the number here of each, int32 [R]."""
        table = other.table()
        return self.add(table.min, table.max)

    def table(self) -> RangeTable:
        """Return the rules by number."""
        return RangeTable(*self._ends.records().view(np.float64).T.copy())


class ValueDictionary:
    """The distinct values and rules of one categorical or set attribute; 0 is no rule."""

    def __init__(self, attribute: Attribute):
        self.attribute = attribute
        self._texts = TextSet()
        self._rules = ValueRuleSet()

    def add_texts(self, texts: pa.Array) -> np.ndarray:
        """Return int32 [n], the ids of texts (large_string, no nulls)."""
        return self._texts.add(*text_buffers(texts))

    def add(self, include: Lists, exclude: Lists) -> np.ndarray:
        """Return int32 [n], the rules that name these ids, in any order and with repeats."""
        return self._rules.add(include.offsets, include.ids, exclude.offsets, exclude.ids)

    def add_rules(self, rules: Sequence[Rule | None]) -> np.ndarray:
        """Return the numbers of rules, int32 [n]."""
        sides = []
        for side in ("include", "exclude"):
            lists = [() if rule is None else getattr(rule, side) for rule in rules]
            offsets = np.cumsum([0, *map(len, lists)], dtype=np.int64)
            flat = pa.array([text for texts in lists for text in texts], pa.large_string())
            sides.append(Lists(offsets, self.add_texts(flat)))
        return self.add(*sides)

    def merge(self, other: ValueDictionary) -> np.ndarray:
        """Add another's rules and return the number here of each, int32 [R]."""
        theirs = other.table()
        ids = self.add_texts(theirs.values)
        return self.add(
            Lists(theirs.include_offsets, ids[theirs.include_values]),
            Lists(theirs.exclude_offsets, ids[theirs.exclude_values]),
        )

    def table(self) -> ValueTable:
        """Return the rules by number."""
        offsets, text = self._texts.texts()
        values = pa.LargeStringArray.from_buffers(
            len(offsets) - 1, pa.py_buffer(offsets), pa.py_buffer(text)
        )
        return ValueTable(values, *self._rules.lists())


class Dictionary:
    """What the rows that one worker reads are made of, each distinct part once."""

    def __init__(self, schema: Schema):
        self.schema = schema
        self.rules = tuple(
            RangeDictionary() if attribute.kind == "range" else ValueDictionary(attribute)
            for attribute in schema.attributes
        )
        self._windows = RecordSet(16)
        self._windows.add(_bytes(np.array([ALWAYS], np.int64)))
        self._signatures = RecordSet(4 * (len(self.rules) + 1))

    def sign(self, rules: Sequence[np.ndarray], windows: np.ndarray) -> np.ndarray:
        """Return int32 [n], the signatures of rows.

        Args:
            rules: per attribute int32 [n], numbers of its dictionary here.
            windows: int64 [n, 2], start and end, `ALWAYS` where there is none.
        """
        window_ids = self._windows.add(_bytes(windows))
        return self._signatures.add(_bytes(np.stack([*rules, window_ids], 1)))

    def merge(self, other: Dictionary) -> np.ndarray:
        """Add what another holds and return the number here of each of its signatures, int32."""
        signatures = other.signatures()
        rules = [
            mine.merge(theirs)[ids]
            for mine, theirs, ids in zip(self.rules, other.rules, signatures.T[:-1], strict=True)
        ]
        return self.sign(rules, other.windows()[signatures[:, -1]])

    def windows(self) -> np.ndarray:
        """Return the windows by number, int64 [W, 2]."""
        return self._windows.records().view(np.int64)

    def signatures(self) -> np.ndarray:
        """Return the signatures by number, int32 [G, num_attributes + 1]."""
        return self._signatures.records().view(np.int32)


def text_buffers(texts: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    """Return a large_string array's offsets, int64 [n + 1], and the bytes they point into."""
    _, offsets, text = texts.buffers()
    first, num_texts = texts.offset, len(texts)
    if offsets is None:
        return np.zeros(1, np.int64), np.empty(0, np.uint8)
    return (
        np.frombuffer(offsets, np.int64)[first : first + num_texts + 1],
        np.empty(0, np.uint8) if text is None else np.frombuffer(text, np.uint8),
    )


def _bytes(rows: np.ndarray) -> np.ndarray:
    """Return uint8 [n, bytes per row] of an array with n rows."""
    width = rows.shape[1] * rows.itemsize
    return np.ascontiguousarray(rows).view(np.uint8).reshape(len(rows), width)
