"""The dictionaries of targeting: distinct values, rules, windows and signatures, as arrays."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from torch import Tensor

from grace import _native
from grace.catalog import Schema, Targeting
from grace.catalog.targeting import parse_instant
from grace.index.lookup import TextTable


@dataclass(frozen=True)
class RangeRules:
    """The R distinct rules of a range attribute: float64 [R] `min` and `max`, infinite when open.

    Rule 0 is "no rule".
    """

    min: Tensor
    max: Tensor

    @property
    def num_rules(self) -> int:
        """R, "no rule" included."""
        return len(self.min)


@dataclass(frozen=True)
class ValueRules:
    """The R distinct rules of a categorical or set attribute, as value ids in CSR form.

    Rule 0 is "no rule"; any other includes or excludes something.

    Attributes:
        values: the values that any rule names, ascending by their UTF-8 bytes.
        include_offsets, exclude_offsets: int32 or int64 [R + 1].
        include_values, exclude_values: int32, value ids, ascending within a rule.
    """

    values: TextTable
    include_offsets: Tensor
    include_values: Tensor
    exclude_offsets: Tensor
    exclude_values: Tensor

    @property
    def num_rules(self) -> int:
        """R, "no rule" included."""
        return len(self.include_offsets) - 1

    @property
    def has_include(self) -> Tensor:
        """bool [R], whether a rule names values that it accepts."""
        return self.include_offsets[1:] > self.include_offsets[:-1]


@dataclass(frozen=True)
class CompiledTargeting:
    """A request's targeting in the numbers of one index; see `RuleTables.compile`.

    Attributes:
        targeting: what was compiled.
        known: uint8 [num_attributes].
        numbers: float64 [num_attributes], NaN unless the attribute is a known range.
        value_ids: per attribute int32, ids of the carried values that some rule names, ascending.
    """

    targeting: Targeting
    known: np.ndarray
    numbers: np.ndarray
    value_ids: tuple[np.ndarray, ...]


@dataclass(frozen=True)
class RuleTables:
    """Everything that ads' rules are made of, each distinct part once.

    Attributes:
        schema: the attributes.
        rules: one table per attribute.
        windows: int64 [W, 2], start and end in microseconds since 1970-01-01 UTC; 0 is always.
        signatures: int32 [G, num_attributes + 1], rule ids and a window id.
    """

    schema: Schema
    rules: tuple[RangeRules | ValueRules, ...]
    windows: Tensor
    signatures: Tensor

    def compile(self, targeting: Targeting) -> CompiledTargeting:
        """Look a request's values up once, for every matcher and the last filter."""
        value_ids, numbers = [], []
        for rules, value in zip(self.rules, targeting.values, strict=True):
            ranged = isinstance(rules, RangeRules)
            numbers.append(value if ranged and value is not None else math.nan)
            found = rules.values.find(value or ()) if not ranged else np.empty(0, np.int64)
            value_ids.append(np.sort(found[found >= 0]).astype(np.int32))
        known = np.array([value is not None for value in targeting.values], np.uint8)
        return CompiledTargeting(targeting, known, np.array(numbers, np.float64), tuple(value_ids))

    def compile_plain(
        self, attributes: Sequence[object], times: Sequence[object]
    ) -> list[CompiledTargeting | None]:
        """Check and look up what B requests say, in one native call, where it is plain.

        Args:
            attributes: of each request, as it came.
            times: their `at`.

        Returns:
            What `compile` makes of `parse_targeting`; None for a request that these have to look
            at: it is wrong, or not written as a JSON parser and most programs write it.
        """
        return self._compiled(*self._reader.read(list(attributes), list(times)))

    def compile_texts(self, texts: _native.RequestTexts) -> list[CompiledTargeting | None]:
        """Do what `compile_plain` does for requests as texts, without the interpreter."""
        return self._compiled(*self._reader.read_texts(texts))

    def _compiled(
        self,
        given: list,
        known: np.ndarray,
        numbers: np.ndarray,
        ids: np.ndarray,
        bounds: np.ndarray,
    ) -> list[CompiledTargeting | None]:
        width, bounds = len(self.rules), bounds.tolist()
        compiled = []
        for i, one in enumerate(given):
            if one is None:
                compiled.append(None)
                continue
            values, at = one
            targeting = Targeting(values, parse_instant(None) if at is None else at)
            ends = range(i * width, (i + 1) * width)
            value_ids = tuple([ids[bounds[e] : bounds[e + 1]] for e in ends])
            compiled.append(CompiledTargeting(targeting, known[i], numbers[i], value_ids))
        return compiled

    @cached_property
    def _reader(self) -> _native.TargetingReader:
        return _native.TargetingReader([
            (attribute.name, attribute.kind, () if ranged else rules.values.finding)
            for attribute, rules in zip(self.schema.attributes, self.rules, strict=True)
            for ranged in [isinstance(rules, RangeRules)]
        ])  # fmt: skip
