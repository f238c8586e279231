"""Examples: a history cut somewhere, and the ads that follow the cut."""

from __future__ import annotations

import dataclasses
import hashlib
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from grace.errors import DataError, TrainError
from grace.model.feature_table import FeatureTable
from grace.model.features import FeatureSpec
from grace.train.rows import ExampleRows

if TYPE_CHECKING:
    from grace.index import Index

NO_TARGET = -1


@dataclasses.dataclass(frozen=True, kw_only=True)
class Examples:
    """n examples of one epoch, in the order in which training sees them.

    Attributes:
        rows: `[n]` int64, row of the table.
        ends: `[n]` int64, where in the target sequence's `EventColumn` the history ends.
        ads: `[n, M]` int64, positions of the target ads; -1 where an example has fewer than M.
    """

    rows: np.ndarray
    ends: np.ndarray
    ads: np.ndarray

    def __len__(self) -> int:
        return len(self.rows)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExampleSet:
    """Rows that are encoded once, from which every epoch draws its examples.

    Attributes:
        table: the features of all rows.
        sequence: the field whose events are the targets of rows that name none; None if every row
            names its own.
        ads: `[num_rows]` int64, position of each row's own target; -1 where it names none, or one
            that the index does not know.
        skipped: `[num_rows]` bool, rows of the second kind.
        ad_sids: `[num_ads]` int64, SID index of each ad of the index.
    """

    table: FeatureTable
    sequence: str | None
    ads: np.ndarray
    skipped: np.ndarray
    ad_sids: np.ndarray

    @classmethod
    def build(cls, rows: ExampleRows, spec: FeatureSpec, index: Index) -> ExampleSet:
        """Encode rows.

        Raises:
            DataError: if a row does not fit `spec`, or names no target and `spec` has no one
                sequence field to take targets from.
            TrainError: if the index knows no target at all.
        """
        named = np.array([target is not None for target in rows.targets])
        ads = np.full(len(named), NO_TARGET, np.int64)
        ads[named] = index.find_ads([target for target in rows.targets if target is not None])
        if not named.all() and len(spec.sequences) != 1:
            raise DataError(
                f"{rows.source}: row {rows.numbers[int(named.argmin())]}: a row needs a `target`: "
                f"the features have {len(spec.sequences)} sequence fields, and only where there is "
                "one are its events the targets"
            )
        examples = cls(
            table=rows.tabulate(spec, index),
            sequence=None if named.all() else spec.sequences[0].name,
            ads=ads,
            skipped=named & (ads < 0),
            ad_sids=np.asarray(index.ad_sid).astype(np.int64),
        )
        if not len(examples.draw(np.random.default_rng(0), cuts_per_row=1, num_targets=1)):
            raise TrainError(
                f"{rows.source}: no target is left: no row has a target, or two events, that the "
                "index knows; was it built from another catalogue?"
            )
        return examples

    @property
    def unknown_targets(self) -> int:
        """Rows left out because the index does not know their target."""
        return int(self.skipped.sum())

    @property
    def unknown_events(self) -> int:
        """Events left out, as history and as target, because the index does not know their ad."""
        return int(self.table.unknown_items.sum())

    def draw(self, rng: np.random.Generator, cuts_per_row: int, num_targets: int) -> Examples:
        """Draw the examples of one epoch, shuffled.

        A row with a target of its own is one example. Any other is cut in `cuts_per_row` distinct
        places (in all, if it has fewer), each after its first event; the next `num_targets` events
        are the targets. Every epoch has as many examples.
        """
        own = self._own_targets(num_targets)
        cut = self._cut(rng, cuts_per_row, num_targets)
        order = rng.permutation(len(own) + len(cut))
        return Examples(
            rows=np.concatenate([own.rows, cut.rows])[order],
            ends=np.concatenate([own.ends, cut.ends])[order],
            ads=np.concatenate([own.ads, cut.ads])[order],
        )

    def inputs(self, examples: Examples, chosen: slice) -> tuple[dict[str, Tensor], Tensor]:
        """Return the model's inputs of some examples, and their target SIDs.

        Returns:
            `FeatureTable.batch`, and `[n, M, L]` int64, -1 where there is no target.
        """
        ends = {self.sequence: examples.ends[chosen]} if self.sequence else None
        ads = examples.ads[chosen]
        sids = self.table.index_sids[self.ad_sids[ads]].astype(np.int64)
        sids[ads < 0] = NO_TARGET
        return self.table.batch(examples.rows[chosen], ends), torch.from_numpy(sids)

    def digest(self) -> str:
        """Return a hash of the features and targets, to tell one data set from another."""
        digest = hashlib.sha256(self.ads.tobytes())
        for column in self.table.columns.values():
            digest.update(column.tobytes())
        for events in self.table.events.values():
            for part in dataclasses.astuple(events):
                digest.update(part.tobytes())
        return digest.hexdigest()

    def _own_targets(self, num_targets: int) -> Examples:
        rows = np.flatnonzero(self.ads >= 0)
        ads = np.full((len(rows), num_targets), NO_TARGET, np.int64)
        ads[:, 0] = self.ads[rows]
        if self.sequence is None:
            return Examples(rows=rows, ends=np.zeros_like(rows), ads=ads)
        return Examples(rows=rows, ends=self.table.events[self.sequence].offsets[rows + 1], ads=ads)

    def _cut(self, rng: np.random.Generator, cuts_per_row: int, num_targets: int) -> Examples:
        if self.sequence is None:
            nothing = np.zeros(0, np.int64)
            return Examples(rows=nothing, ends=nothing, ads=nothing.reshape(0, num_targets))
        events = self.table.events[self.sequence]
        free = (self.ads < 0) & ~self.skipped
        num_cuts = np.where(free, np.maximum(np.diff(events.offsets) - 1, 0), 0)
        rows = np.repeat(np.arange(len(num_cuts)), num_cuts)
        place = np.arange(len(rows)) - (np.cumsum(num_cuts) - num_cuts)[rows]
        # Sorted by random keys inside each row, its first places are a sample without replacement.
        order = np.lexsort((rng.random(len(rows)), rows))[place < cuts_per_row]
        rows, ends = rows[order], events.offsets[rows[order]] + 1 + place[order]
        following = ends[:, None] + np.arange(num_targets)
        present = following < events.offsets[rows + 1][:, None]
        ads = np.full(following.shape, NO_TARGET, np.int64)
        ads[present] = events.ads[following[present]]
        return Examples(rows=rows, ends=ends, ads=ads)
