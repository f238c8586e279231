"""Raw files → Parquet files split by leave-one-out, and a manifest that says what is in them."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from grace.datasets.manifest import FILES, sha256, write_manifest
from grace.datasets.raw import Item, Raw
from grace.errors import DataError
from grace.files import atomic_write
from grace.progress import progress

MIN_EVENTS = 5
"""Users with fewer events are left out; in the published files there are none."""


@dataclass(frozen=True)
class Statistics:
    """How many users, items with at least one interaction, and interactions."""

    users: int
    items: int
    interactions: int


@dataclass(frozen=True)
class Dataset:
    """A data set by name.

    Attributes:
        name: of the command line.
        read: a folder of raw files → `Raw`.
        published: what the raw files must hold.
        source: who states so.
    """

    name: str
    read: Callable[[Path], Raw]
    published: Statistics
    source: str


def prepare(dataset: Dataset, raw: str | os.PathLike, out: str | os.PathLike) -> dict:
    """Read a data set, compare it with the published statistics, split it and write it.

    A user's last item is the test target, the one before it the validation target, the rest is for
    training. The manifest is completed last: `load` refuses a folder left half written.

    Args:
        dataset: which.
        raw: folder of its raw files.
        out: folder to write, made if there is none. Files of an earlier run are replaced.

    Returns:
        The manifest, as written.

    Raises:
        DataError: if a raw file is missing or wrong, or a count is not the published one.
    """
    raw, out = Path(raw), Path(out)
    if not raw.is_dir():
        raise DataError(f"{raw}: expected the folder of the raw files of {dataset.name}")
    with progress(f"reading {dataset.name}"):
        read = dataset.read(raw)
    found = _statistics(read)
    _compare(dataset, found)
    kept = {user: items for user, items in read.histories.items() if len(items) >= MIN_EVENTS}
    if out.exists() and not out.is_dir():
        raise DataError(f"{out}: is a file; name a folder")
    out.mkdir(parents=True, exist_ok=True)
    write_manifest(out, {"files": {}})  # half written until the last line: refused meanwhile
    _write(out / "items.parquet", _items_table(read.items))
    _write(out / "train.parquet", _train_table(kept))
    _write(out / "valid.parquet", _held_out_table(kept, 2))
    _write(out / "test.parquet", _held_out_table(kept, 1))
    manifest = {
        "name": dataset.name,
        "counts": {
            "users": len(kept),
            "items": len(read.items),
            "interactions": sum(map(len, kept.values())),
            "train_interactions": sum(len(items) - 2 for items in kept.values()),
            "users_left_out": len(read.histories) - len(kept),
            "items_without_text": sum(not item.text for item in read.items),
            "items_without_title": sum(item.title is None for item in read.items),
        },
        "published": {
            **dataclasses.asdict(dataset.published),
            "source": dataset.source,
            "matches": True,
        },
        "split": "leave-one-out: last item test, last but one validation, the rest training",
        "raw_files": {path.name: sha256(path) for path in read.files},
        "files": {name: sha256(out / name) for name in FILES},
    }
    return write_manifest(out, manifest)


def _statistics(raw: Raw) -> Statistics:
    return Statistics(
        users=len(raw.histories),
        items=len({item for items in raw.histories.values() for item in items}),
        interactions=sum(map(len, raw.histories.values())),
    )


def _compare(dataset: Dataset, found: Statistics) -> None:
    expected = dataclasses.asdict(dataset.published)
    wrong = [
        f"{expected[name]:,} {name}, found {count:,}"
        for name, count in dataclasses.asdict(found).items()
        if count != expected[name]
    ]
    if wrong:
        raise DataError(
            f"{dataset.name}: {dataset.source} state {'; '.join(wrong)}; "
            "take the files that docs/datasets.md names"
        )


def _items_table(items: list[Item]) -> pa.Table:
    return pa.table(
        {
            "ad_id": pa.array([item.item_id for item in items], pa.int64()),
            "title": pa.array([item.title for item in items], pa.string()),
            "text": pa.array([item.text for item in items], pa.string()),
            "attributes": pa.array([item.attributes for item in items], pa.list_(pa.string())),
        }
    )


def _train_table(histories: dict[int, list[int]]) -> pa.Table:
    return pa.table(
        {
            "user": pa.array(histories, pa.int64()),
            "items": pa.array([items[:-2] for items in histories.values()], pa.list_(pa.int64())),
        }
    )


def _held_out_table(histories: dict[int, list[int]], from_end: int) -> pa.Table:
    before = [items[:-from_end] for items in histories.values()]
    return pa.table(
        {
            "user": pa.array(histories, pa.int64()),
            "history": pa.array(before, pa.list_(pa.int64())),
            "target": pa.array([items[-from_end] for items in histories.values()], pa.int64()),
        }
    )


def _write(path: Path, table: pa.Table) -> None:
    with atomic_write(path) as file:
        pq.write_table(table, file)
