"""Where each attribute's bits stand in a packed row, and which of them rules and requests set."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from grace.catalog import Attribute, Targeting
from grace.errors import CatalogError
from grace.index.rules import RangeRules, RuleTables, ValueRules

MAX_INTERVALS = 4096
MAX_CATEGORICAL_VALUES = 16_384


@dataclass(frozen=True)
class BitLayout:
    """The segments of a row, one per attribute, each ending with an `other` and an `unknown` bit.

    - categorical: a bit per value that a rule names; `other` is any value that no rule names.
    - range: a bit per elementary interval between `cuts`; `other` is never asked for.
    - set: no value bits (Bloom filters hold the values); `other` says that the row holds an ad
      without an include, `unknown` that it holds one without any rule on the attribute.

    Attributes:
        cuts: per attribute float64; interval i holds the numbers x with exactly i cuts <= x. Empty
            where the attribute is not a range.
        offsets: int [num_attributes + 1], bounds of the segments in bits.
    """

    cuts: tuple[np.ndarray, ...]
    offsets: np.ndarray

    @property
    def num_bits(self) -> int:
        """Bits of a row, without the padding to whole words."""
        return int(self.offsets[-1])

    def other_bit(self, attribute: int) -> int:
        """Position of an attribute's `other` bit."""
        return int(self.offsets[attribute + 1]) - 2

    def unknown_bit(self, attribute: int) -> int:
        """Position of an attribute's `unknown` bit."""
        return int(self.offsets[attribute + 1]) - 1


def bit_layout(tables: RuleTables) -> BitLayout:
    """Lay out the bitmask rows of an index.

    Raises:
        CatalogError: if rules name too many values of a categorical attribute.
    """
    cuts, widths = [], []
    for attribute, rules in zip(tables.schema.attributes, tables.rules, strict=True):
        ranged = isinstance(rules, RangeRules)
        cuts.append(range_cuts(rules) if ranged else np.empty(0))
        widths.append((len(cuts[-1]) + 1 if ranged else _value_bits(attribute, rules)) + 2)
    return BitLayout(tuple(cuts), np.cumsum([0, *widths]))


def _value_bits(attribute: Attribute, rules: ValueRules) -> int:
    if attribute.kind == "set":
        return 0
    if len(rules.values) > MAX_CATEGORICAL_VALUES:
        raise CatalogError(
            f"rules name {len(rules.values):,} values; a categorical attribute takes a bit "
            f"for each and holds at most {MAX_CATEGORICAL_VALUES:,}: declare it as kind: set",
            field=f"rules.{attribute.name}",
        )
    return len(rules.values)


def range_cuts(rules: RangeRules) -> np.ndarray:
    """Return the cuts between elementary intervals, float64 ascending.

    A cut stands left of every `min` and right of every `max`, so each rule is a whole number of
    intervals. Past 4,096 intervals only evenly spaced cuts are kept: neighbours merge.
    """
    low, high = rules.min.numpy(), rules.max.numpy()
    right_of_max = np.nextafter(high[np.isfinite(high)], np.inf)
    cuts = np.unique(np.concatenate([low[np.isfinite(low)], right_of_max]))
    if len(cuts) >= MAX_INTERVALS:
        kept = np.linspace(0, len(cuts) - 1, MAX_INTERVALS - 1).round().astype(np.int64)
        cuts = cuts[kept]
    return cuts


def range_intervals(rules: RangeRules, cuts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return int32 [R] twice, the first and the last elementary interval of each rule."""
    ends = (rules.min.numpy(), rules.max.numpy())
    first, last = (np.searchsorted(cuts, end, side="right").astype(np.int32) for end in ends)
    return first, last


def request_flags(tables: RuleTables, layout: BitLayout, targeting: Targeting) -> np.ndarray:
    """Return bool [num_bits], what equation 5 asks of a row: one bit per attribute.

    A known set attribute asks for no bit here: its Bloom filter or its `other` bit decides.
    """
    flags = np.zeros(layout.num_bits, bool)
    for attribute, value in enumerate(targeting.values):
        first = int(layout.offsets[attribute])
        if value is None:
            flags[layout.unknown_bit(attribute)] = True
        elif tables.schema.attributes[attribute].kind == "range":
            flags[first + np.searchsorted(layout.cuts[attribute], value, side="right")] = True
        elif tables.schema.attributes[attribute].kind == "categorical":
            (number,) = tables.rules[attribute].values.find(value)
            flags[first + number if number >= 0 else layout.other_bit(attribute)] = True
    return flags
