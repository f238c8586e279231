"""Features of many rows as columns: parsed and resolved once, then cut into batches by index."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from grace.model.fields import (
    FIRST_VALUE,
    MISSING,
    PADDING,
    BagField,
    Events,
    NumericField,
    SequenceField,
)

if TYPE_CHECKING:
    from grace.index import Index
    from grace.model.features import FeatureSpec

NUM_GAP_ROWS = FIRST_VALUE + 38
"""Rows of a time-gap embedding: bucket i holds gaps of 2^i - 1 up to 2^(i+1) - 1 seconds; 2 * 10^11
seconds, the widest gap that times allow, falls into bucket 37."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class EventColumn:
    """The known events of one sequence field, of all rows, one after the other.

    Attributes:
        offsets: `[num_rows + 1]` int64, bounds of each row's events.
        ads: `[num_events]` int64, ad position in the index.
        sids: `[num_events]` int64, SID index.
        actions: `[num_events]` int64, embedding row of the action.
        times_s: `[num_events]` float64, seconds since 1970, NaN where not said.
    """

    offsets: np.ndarray
    ads: np.ndarray
    sids: np.ndarray
    actions: np.ndarray
    times_s: np.ndarray


@dataclasses.dataclass(frozen=True, kw_only=True)
class FeatureTable:
    """Features of many rows.

    Attributes:
        spec: the declaration they fit.
        columns: per field, categorical `[num_rows]` int64 embedding rows; numeric `[num_rows]`
            float32, NaN where missing; bag `[num_rows, max_length]` int64 embedding rows.
        events: per sequence field, its events.
        unknown_items: `[num_rows]` int64, events skipped: the index does not know their ad.
        index_sids: `[num_sids, L]` the index's SIDs.
    """

    spec: FeatureSpec
    columns: dict[str, np.ndarray]
    events: dict[str, EventColumn]
    unknown_items: np.ndarray
    index_sids: np.ndarray

    @classmethod
    def build(
        cls, spec: FeatureSpec, rows: Sequence[Mapping[str, Any]], index: Index
    ) -> FeatureTable:
        """Parse rows and resolve their events.

        Raises:
            RequestError: at the first value that does not fit `spec`.
        """
        return cls.of_parsed(spec, [spec.parse(row) for row in rows], index)

    @classmethod
    def of_parsed(cls, spec: FeatureSpec, parsed: Sequence[tuple], index: Index) -> FeatureTable:
        """Resolve the events of rows that `FeatureSpec.parse` has read."""
        columns: dict[str, np.ndarray] = {}
        events: dict[str, EventColumn] = {}
        unknown_items = np.zeros(len(parsed), np.int64)
        for f, field in enumerate(spec.fields):
            values = [row[f] for row in parsed]
            if isinstance(field, SequenceField):
                events[field.name], unknown = _resolve(values, index)
                unknown_items += unknown
            elif isinstance(field, BagField):
                bags = np.full((len(parsed), field.max_length), PADDING, np.int64)
                for bag, entries in zip(bags, values, strict=True):
                    bag[: len(entries)] = entries
                columns[field.name] = bags
            else:
                dtype = np.float32 if isinstance(field, NumericField) else np.int64
                columns[field.name] = np.asarray(values, dtype)
        return cls(
            spec=spec,
            columns=columns,
            events=events,
            unknown_items=unknown_items,
            index_sids=index.sids,
        )

    def batch(
        self, rows: Sequence[int] | np.ndarray, ends: Mapping[str, np.ndarray] | None = None
    ) -> dict[str, Tensor]:
        """Cut the model's inputs for some rows.

        Args:
            rows: B row numbers, in any order, repeated at will.
            ends: per sequence field `[B]` int64, where in its `EventColumn` the row's history ends;
                a field not named keeps all of its events.

        Returns:
            Tensors whose shapes depend on B and the declaration alone:

            - categorical: `<name>` `[B]` int64, embedding row;
            - numeric: `<name>` `[B]` float32, NaN where missing;
            - bag: `<name>` `[B, max_length]` int64, embedding rows;
            - sequence, newest event last and padding first: `<name>.tokens`
              `[B, max_length, L]` int64, `<name>.actions` and `<name>.gaps` `[B, max_length]` int64
              embedding rows, `<name>.valid` `[B, max_length]` bool, False on padding.
        """
        rows = np.asarray(rows, np.int64)
        inputs = {name: column[rows] for name, column in self.columns.items()}
        for field in self.spec.sequences:
            column = self.events[field.name]
            end = (ends or {}).get(field.name, column.offsets[rows + 1])
            window = self._window(column, column.offsets[rows], end, field.max_length)
            inputs |= {f"{field.name}.{part}": value for part, value in window.items()}
        return {name: torch.from_numpy(value) for name, value in inputs.items()}

    def _window(
        self, column: EventColumn, start: np.ndarray, end: np.ndarray, length: int
    ) -> dict[str, np.ndarray]:
        events = end[:, None] + np.arange(-length, 0)
        valid = events >= start[:, None]
        if not len(column.sids):
            tokens = np.zeros((*events.shape, self.index_sids.shape[1]), np.int64)
            special = np.full(events.shape, PADDING, np.int64)
            return {"tokens": tokens, "actions": special, "gaps": special.copy(), "valid": valid}
        # Padding reads event 0 and is overwritten: one gather, no branch per row.
        events = np.where(valid, events, 0)
        tokens = self.index_sids[column.sids[events]].astype(np.int64)
        tokens[~valid] = 0
        return {
            "tokens": tokens,
            "actions": np.where(valid, column.actions[events], PADDING),
            "gaps": _gap_rows(np.where(valid, column.times_s[events], np.nan), valid),
            "valid": valid,
        }


def _resolve(rows: list[Events], index: Index) -> tuple[EventColumn, np.ndarray]:
    lengths = np.fromiter((len(row.ad_ids) for row in rows), np.int64, len(rows))
    ads = index.find_ads(list(itertools.chain.from_iterable(row.ad_ids for row in rows)))
    known = ads >= 0
    row_of = np.repeat(np.arange(len(rows)), lengths)[known]
    kept = np.bincount(row_of, minlength=len(rows))
    none = Events([], np.empty(0, np.int64), np.empty(0, np.float64))
    column = EventColumn(
        offsets=np.concatenate([[0], np.cumsum(kept)]).astype(np.int64),
        ads=ads[known],
        sids=np.asarray(index.ad_sid)[ads[known]].astype(np.int64),
        actions=np.concatenate([row.actions for row in (none, *rows)])[known],
        times_s=np.concatenate([row.times_s for row in (none, *rows)])[known],
    )
    return column, lengths - kept


def _gap_rows(times_s: np.ndarray, valid: np.ndarray) -> np.ndarray:
    """Return `[B, max_length]`, the embedding row of the time from each event to the row's newest.

    Measured from the newest event, not from the one before, a gap does not depend on where the
    window begins.
    """
    timed = ~np.isnan(times_s)
    newest = np.max(times_s, axis=1, keepdims=True, initial=-np.inf, where=timed)
    gaps = np.where(timed, newest - times_s, 0.0)
    _, exponents = np.frexp(1 + gaps)  # exact everywhere, as no logarithm is
    buckets = FIRST_VALUE - 1 + exponents.astype(np.int64)
    return np.where(timed, buckets, np.where(valid, MISSING, PADDING))
