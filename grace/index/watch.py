"""The builder that stays: merges the deltas of a change stream into an index, version by version.

The watermark of the last delta is kept with the version that holds it, and both become current in
one step. A builder that was killed goes on from there and ends in the same content.
"""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path

from grace.errors import CatalogError, ConfigError, DataError, IndexFormatError
from grace.index import storage
from grace.index.bloom import BloomShape
from grace.index.build import IndexData, build_data
from grace.index.deltas import ChangeSource, Delta, bad_delta
from grace.index.history import CURRENT, DEFAULT_KEEP, read_current, read_history
from grace.index.merge import merge_data
from grace.progress import progress

MAX_DELTAS = 32  # merged before a version is published


@dataclass(frozen=True)
class Step:
    """A version that a watcher published.

    Attributes:
        version: its id.
        watermark: of the last delta in it.
        deltas: how many were merged in this step.
        changed: ads that they wrote, new or in place of others.
        removed: ads that left.
        ads, sids: in the version.
    """

    version: str
    watermark: str
    deltas: int
    changed: int
    removed: int
    ads: int
    sids: int

    def to_dict(self) -> dict:
        """Return the form that `grace index watch --json` prints."""
        return asdict(self)


class Watcher:
    """Holds an index's current version and what its watermark is; `step` moves both on.

    Attributes:
        version: the current version, or None before the first.
        watermark: of the last delta that it holds, or None.
    """

    def __init__(
        self,
        directory: str | os.PathLike,
        source: ChangeSource,
        keep: int = DEFAULT_KEEP,
        resume: bool = False,
        workers: int = 1,
    ):
        """Open the index's current version.

        Args:
            directory: of the index; if it holds none, the deltas alone make the first version.
            source: the change stream.
            keep: versions to leave on disk.
            resume: whether to go on after a rollback, where deltas would be applied again.
            workers: threads; the versions do not depend on them.

        Raises:
            IndexFormatError: if the index or its history is damaged.
        """
        if keep < 1:
            raise ConfigError(f"keep must be at least 1, got {keep}")
        self._directory = Path(directory)
        self._source = source
        self._keep = keep
        self._workers = workers
        self.version: str | None = None
        self.watermark: str | None = None
        self._data: IndexData | None = None
        self._rolled_back = False
        if (self._directory / CURRENT).exists():  # a damaged one is refused, not begun anew
            self.version, self._data = storage.load(self._directory)
            named = [e for e in read_history(self._directory) if e.version == self.version]
            if named:
                self.watermark = named[-1].watermark
                self._rolled_back = named[-1].action == "rollback" and not resume

    def step(self) -> Step | None:
        """Merge the deltas that have come and publish them as one version.

        Deltas before a bad one are published; then the bad one is an error, now and at every step
        until it is mended.

        Returns:
            What was published; None if no delta has come.

        Raises:
            DataError: for a bad delta, naming it and what stays.
            IndexFormatError: if somebody else changed the current version, or rolled back.
        """
        if self.version is not None and read_current(self._directory) != self.version:
            raise IndexFormatError(
                f"{self._directory}: {read_current(self._directory)} was made current by a build "
                f"or a rollback, over {self.version} of this watcher; start it again to go on"
            )
        data, watermark, applied, fault = self._data, self.watermark, [], None
        with progress("merging deltas") as advance:
            try:
                for delta in islice(self._source.poll(self.watermark), MAX_DELTAS):
                    self._check_rollback(delta)
                    counts = len(delta.changes.ads.ad_ids), _leaving(data, delta)
                    data, watermark = _merged(data, delta, self._workers), delta.watermark
                    applied.append(counts)
                    advance(1)
            except DataError as error:
                fault = error
        step = self._publish(data, watermark, applied) if applied else None
        if fault is not None:
            stays = f"version {self.version}, watermark {self.watermark or 'none'}, stays current"
            raise DataError(f"{fault}; {stays}")
        return step

    def _check_rollback(self, delta: Delta) -> None:
        if self._rolled_back:
            raise IndexFormatError(
                f"{self._directory}: a rollback made the current version so, and {delta.name} "
                "would be applied again; mend or remove it, then go on with --resume"
            )

    def _publish(self, data: IndexData, watermark: str, applied: list[tuple[int, int]]) -> Step:
        self.version = storage.save(
            data, self._directory, watermark, self._keep, self.version, first=self.version is None
        )
        self.watermark = watermark
        # Mapped from the file again: what readers will see, and no second copy in memory.
        self._data = storage.load_version(self._directory, self.version)
        return Step(
            version=self.version,
            watermark=watermark,
            deltas=len(applied),
            changed=sum(changed for changed, _ in applied),
            removed=sum(removed for _, removed in applied),
            ads=len(self._data.ad_signatures),
            sids=self._data.trie.level_sizes[-1],
        )


def _leaving(base: IndexData | None, delta: Delta) -> int:
    if base is None:
        return 0
    return int((base.ad_ids.find(delta.changes.removed.to_pylist()) >= 0).sum())


def _merged(base: IndexData | None, delta: Delta, workers: int) -> IndexData:
    try:
        if base is not None:
            return merge_data(base, delta.changes, workers)
        if not len(delta.changes.ads.ad_ids):
            raise CatalogError("holds no ad; the first delta of an empty index needs one")
        return build_data(delta.changes.ads, BloomShape(), workers)
    except CatalogError as error:
        raise bad_delta(delta.name, error) from None
