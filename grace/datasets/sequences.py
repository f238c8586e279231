"""A prepared data set in memory: training histories, and the held-out splits when asked for."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from grace.datasets.manifest import check_file
from grace.errors import DataError


@dataclasses.dataclass(frozen=True, kw_only=True)
class Split:
    """Held-out items, one a user, with the history before each.

    Attributes:
        name: `valid` or `test`.
        users: `[U]` int64, user ids as in the files.
        offsets: `[U + 1]` int64, bounds of each user's history in `items`.
        items: `[E]` int64, dense item numbers, oldest first.
        targets: `[U]` int64, dense number of the item that came next.
        item_ids: `[N]` int64, the id of each dense item number.
    """

    name: str
    users: np.ndarray
    offsets: np.ndarray
    items: np.ndarray
    targets: np.ndarray
    item_ids: np.ndarray

    def __len__(self) -> int:
        return len(self.users)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sequences:
    """The training part of a data set. Nothing here has read a held-out file.

    Attributes:
        folder: where it lies.
        users: `[U]` int64, user ids as in the files.
        offsets: `[U + 1]` int64, bounds of each user's items in `items`.
        items: `[E]` int64, dense item numbers from 0, oldest first.
        item_ids: `[N]` int64, ascending: the id of each dense item number.
    """

    folder: Path
    users: np.ndarray
    offsets: np.ndarray
    items: np.ndarray
    item_ids: np.ndarray

    @property
    def num_items(self) -> int:
        """N, items of the data set, whether or not the training part holds them."""
        return len(self.item_ids)

    def valid(self) -> Split:
        """Read the validation split."""
        return self._split("valid")

    def test(self) -> Split:
        """Read the test split; training and selection never do."""
        return self._split("test")

    def _split(self, name: str) -> Split:
        path = self.folder / f"{name}.parquet"
        table = _read(path, ["user", "history", "target"])
        offsets, items = _lists(table.column("history"), path)
        return Split(
            name=name,
            users=_integers(table.column("user"), path, "user"),
            offsets=offsets,
            items=_dense(items, self.item_ids, path),
            targets=_dense(_integers(table.column("target"), path, "target"), self.item_ids, path),
            item_ids=self.item_ids,
        )


def load(folder: str | os.PathLike) -> Sequences:
    """Read the items and the training part of a folder that `grace data prepare` wrote.

    A folder of your own needs no manifest; where there is one, files must be those it describes.

    Raises:
        DataError: if a file is missing, damaged or not the manifest's, or names an item that
            `items.parquet` lacks.
    """
    folder = Path(folder)
    path = folder / "items.parquet"
    item_ids = np.sort(_integers(_read(path, ["ad_id"]).column("ad_id"), path, "ad_id"))
    if not len(item_ids):
        raise DataError(f"{path}: there are no items")
    if (item_ids[1:] == item_ids[:-1]).any():
        raise DataError(f"{path}: an ad_id is given twice")
    path = folder / "train.parquet"
    table = _read(path, ["user", "items"])
    offsets, items = _lists(table.column("items"), path)
    return Sequences(
        folder=folder,
        users=_integers(table.column("user"), path, "user"),
        offsets=offsets,
        items=_dense(items, item_ids, path),
        item_ids=item_ids,
    )


def _read(path: Path, columns: list[str]) -> pa.Table:
    check_file(path)
    try:
        return pq.read_table(path, columns=columns)
    except (pa.ArrowException, OSError) as error:
        reason = " ".join(str(error).split())
        raise DataError(f"{path}: {reason}; grace data prepare writes it") from None


def _integers(column: pa.ChunkedArray, path: Path, name: str) -> np.ndarray:
    if column.null_count or not pa.types.is_integer(column.type):
        raise DataError(f"{path}: {name}: expected integers without nulls, got {column.type}")
    return column.to_numpy().astype(np.int64)


def _lists(column: pa.ChunkedArray, path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Return int64 offsets [U + 1] and values [E] of a column of lists."""
    lists = column.combine_chunks()
    if not (pa.types.is_list(lists.type) or pa.types.is_large_list(lists.type)):
        raise DataError(f"{path}: expected a column of lists, got {lists.type}")
    lengths = lists.value_lengths()
    values = lists.flatten()
    if lengths.null_count or values.null_count or not pa.types.is_integer(values.type):
        raise DataError(f"{path}: expected lists of integers without nulls, got {lists.type}")
    offsets = np.zeros(len(lists) + 1, np.int64)
    np.cumsum(lengths.to_numpy(), out=offsets[1:])
    return offsets, values.to_numpy().astype(np.int64)


def _dense(ids: np.ndarray, item_ids: np.ndarray, path: Path) -> np.ndarray:
    """Return the dense number of each item id."""
    found = np.minimum(np.searchsorted(item_ids, ids), len(item_ids) - 1)
    unknown = item_ids[found] != ids
    if unknown.any():
        raise DataError(f"{path}: item {ids[unknown][0]} is not in items.parquet")
    return found
