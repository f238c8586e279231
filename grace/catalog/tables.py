"""A checked catalogue in columns: what the index is built from and what changes it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from grace.catalog.schema import Schema
from grace.catalog.values import INT64_MAX, INT64_MIN

ALWAYS = (INT64_MIN, INT64_MAX)


@dataclass(frozen=True)
class RangeTable:
    """The R distinct rules of a range attribute: float64 [R] `min` and `max`, infinite when open.

    Rule 0, "no rule", is (-inf, inf); -0.0 is written 0.0.
    """

    min: np.ndarray
    max: np.ndarray

    def __len__(self) -> int:
        return len(self.min)


@dataclass(frozen=True)
class ValueTable:
    """The R distinct rules of a categorical or set attribute, as value ids in CSR form.

    Rule 0, "no rule", is empty; any other includes or excludes something.

    Attributes:
        values: large_string [V], the distinct values that rules name, in any order.
        include_offsets, exclude_offsets: int64 [R + 1].
        include_values, exclude_values: int32, positions in `values`, distinct within a rule.
    """

    values: pa.Array
    include_offsets: np.ndarray
    include_values: np.ndarray
    exclude_offsets: np.ndarray
    exclude_values: np.ndarray

    def __len__(self) -> int:
        return len(self.include_offsets) - 1


@dataclass(frozen=True)
class Catalog:
    """N ads in file order, with every distinct rule, window and signature once.

    A signature is one rule id per attribute and a window id. Id 0 is always "no rule" and "always";
    the order of other ids may depend on the rows' order and the number of workers.

    Attributes:
        schema: the attributes that rules may name.
        ad_ids: int64 or large_string [N], distinct.
        sids: int32 [N, L], C-contiguous.
        rules: per attribute, its distinct rules.
        windows: int64 [W, 2], distinct starts and ends in microseconds since 1970-01-01 UTC; row 0
            is `ALWAYS`.
        signatures: int32 [G, num_attributes + 1], distinct rows.
        ad_signatures: int32 [N], row of `signatures`.
        paused: bool [N].
    """

    schema: Schema
    ad_ids: pa.Array
    sids: np.ndarray
    rules: tuple[RangeTable | ValueTable, ...]
    windows: np.ndarray
    signatures: np.ndarray
    ad_signatures: np.ndarray
    paused: np.ndarray


@dataclass(frozen=True)
class Changes:
    """What a delta says: ads that are new or replace those of the same id, and ads that go.

    Attributes:
        ads: the new and changed ads; with none of them its `sids` are [0, 0].
        removed: int64 or large_string, the ids of ads to remove; no id is in both.
    """

    ads: Catalog
    removed: pa.Array
