"""A prepared data set in memory: histories as arrays of item positions."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from grace.datasets.prepare import FILES, FORMAT_VERSION, MANIFEST, sha256
from grace.errors import DataError


@dataclass(frozen=True, eq=False)
class HeldOut:
    """One event to predict for each of U users.

    Attributes:
        users: `[U]` int64, as in the raw file.
        offsets: `[U + 1]` int64, row bounds into `items`.
        items: `[E]` int32, positions of the history's items, oldest first.
        targets: `[U]` int32, position of the next item.
    """

    users: np.ndarray
    offsets: np.ndarray
    items: np.ndarray
    targets: np.ndarray


@dataclass(frozen=True, eq=False)
class Sequences:
    """The training histories; the held-out events only when asked for.

    An item's position is its row in `items.parquet`, which goes by ascending id.

    Attributes:
        directory: the prepared folder.
        name: the data set's.
        users: `[U]` int64, as in the raw file.
        offsets: `[U + 1]` int64, row bounds into `items`.
        items: `[E]` int32, positions of the items, oldest first; without each user's last two.
        item_ids: `[N]` int64, ascending; position → id.
    """

    directory: Path
    name: str
    users: np.ndarray
    offsets: np.ndarray
    items: np.ndarray
    item_ids: np.ndarray

    @property
    def num_items(self) -> int:
        """N, items without a training event included."""
        return len(self.item_ids)

    @property
    def num_users(self) -> int:
        """U."""
        return len(self.users)

    def valid(self) -> HeldOut:
        """Open the validation events: each user's last item but one, after the training history."""
        return self._held_out("valid.parquet")

    def test(self) -> HeldOut:
        """Open the test events: each user's last item, after all before it.

        Nothing that trains or selects may call this; only `grace evaluate --split test` does.
        """
        return self._held_out("test.parquet")

    def _held_out(self, name: str) -> HeldOut:
        table = _read(self.directory, _manifest(self.directory), name)
        offsets, items = _lists(table, "history", self.item_ids)
        targets = _positions(table.column("target").to_numpy(), self.item_ids, name)
        return HeldOut(table.column("user").to_numpy(), offsets, items, targets)


def load(directory: str | os.PathLike) -> Sequences:
    """Open a folder that `grace data prepare` wrote; reads no held-out event.

    Raises:
        DataError: if the folder is torn, of another format, or a file is not the manifest's.
    """
    directory = Path(directory)
    manifest = _manifest(directory)
    item_ids = _read(directory, manifest, "items.parquet").column("ad_id").to_numpy()
    train = _read(directory, manifest, "train.parquet")
    offsets, items = _lists(train, "items", item_ids)
    users = train.column("user").to_numpy()
    return Sequences(directory, manifest["name"], users, offsets, items, item_ids)


def _manifest(directory: Path) -> dict:
    path = directory / MANIFEST
    try:
        manifest = json.loads(path.read_bytes())
        version, files = manifest["format_version"], manifest["files"]
        complete = set(files) >= set(FILES) and isinstance(manifest["name"], str)
    except FileNotFoundError:
        raise DataError(
            f"{directory}: no {MANIFEST}; run `grace data prepare NAME --raw DIR --out {directory}`"
        ) from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path}: not a manifest of a prepared data set: {error!r}") from None
    if version != FORMAT_VERSION or not complete:
        raise DataError(
            f"{path}: expected format version {FORMAT_VERSION} with {', '.join(FILES)}, "
            f"got version {version}; run `grace data prepare` again"
        )
    return manifest


def _read(directory: Path, manifest: dict, name: str) -> pa.Table:
    path = directory / name
    try:
        if sha256(path) != manifest["files"][name]:
            raise DataError(
                f"{path}: is not the file that {MANIFEST} describes; run `grace data prepare` again"
            )
        return pq.read_table(path)
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"{path}: cannot be read: {error}") from None


def _lists(table: pa.Table, column: str, item_ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    lists = table.column(column).combine_chunks()
    lengths = np.diff(lists.offsets.to_numpy())
    offsets = np.concatenate(([0], np.cumsum(lengths, dtype=np.int64)))
    return offsets, _positions(lists.flatten().to_numpy(), item_ids, column)


def _positions(ids: np.ndarray, item_ids: np.ndarray, where: str) -> np.ndarray:
    positions = np.searchsorted(item_ids, ids)
    known = np.minimum(positions, len(item_ids) - 1)
    if not np.array_equal(item_ids[known], ids):
        stranger = ids[item_ids[known] != ids][0]
        raise DataError(f"{where}: item {stranger} is not in items.parquet")
    return positions.astype(np.int32)
