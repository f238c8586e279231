"""Amazon 2014, 5-core, in the files of S3-Rec's authors (RUCAIBox/CIKM2020-S3Rec).

`Beauty.txt.gz` holds `user item item ...` a line, oldest first, ids from 1. Timestamps are whole
days, so the order within a day is theirs: numbers compare only between papers that use these files.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
from pathlib import Path

from grace.datasets.raw import Item, Raw
from grace.errors import DataError

FOLDER = "amazon-2014-5core"


def read_amazon(root: Path, name: str) -> Raw:
    """Read one category.

    Args:
        root: the folder with `<name>.txt.gz`, `<name>_items.csv.gz` and
            `<name>_item2attributes.json.gz`, or its parent; each may be unpacked, without `.gz`.
        name: such as `Sports_and_Outdoors`.

    Raises:
        DataError: if a file is missing or wrong, naming the line.
    """
    sequences = _find(root, f"{name}.txt")
    described = _find(root, f"{name}_items.csv")
    labelled = _find(root, f"{name}_item2attributes.json")
    labels = _read_labels(labelled)
    items = _read_items(described, labels)
    known = {item.item_id for item in items}
    return Raw(items, _read_histories(sequences, known), (sequences, described, labelled))


def _find(root: Path, name: str) -> Path:
    folders = root, root / FOLDER
    for folder in folders:
        for path in (folder / name, folder / f"{name}.gz"):
            if path.is_file():
                return path
    raise DataError(f"{root}: expected {name}.gz here or in {FOLDER}; docs/datasets.md says whence")


def _read(path: Path) -> str:
    try:
        content = path.read_bytes()
        return (gzip.decompress(content) if path.suffix == ".gz" else content).decode()
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot be read: {error}") from None


def _read_histories(path: Path, known: set[int]) -> dict[int, list[int]]:
    histories: dict[int, list[int]] = {}
    for number, line in enumerate(io.StringIO(_read(path)), start=1):
        fields = line.split()
        if not fields or not all(field.isdecimal() for field in fields):
            raise DataError(f"{path}, line {number}: expected `user item item ...`, whole numbers")
        user, *items = map(int, fields)
        if user in histories:
            raise DataError(f"{path}, line {number}: user {user} has a line already")
        stranger = next((item for item in items if item not in known), None)
        if stranger is not None:
            raise DataError(f"{path}, line {number}: item {stranger} is not among the items' texts")
        histories[user] = items
    return histories


def _read_labels(path: Path) -> dict[int, tuple[str, ...]]:
    try:
        content = json.loads(_read(path))
        return {
            int(item): tuple(f"attribute{int(label)}" for label in labels)
            for item, labels in content.items()
        }
    except (ValueError, TypeError, AttributeError) as error:
        raise DataError(f"{path}: expected item -> attribute numbers: {error}") from None


def _read_items(path: Path, labels: dict[int, tuple[str, ...]]) -> list[Item]:
    items: dict[int, Item] = {}
    reader = csv.DictReader(io.StringIO(_read(path), newline=""))
    if not {"item_id", "short_text"} <= set(reader.fieldnames or ()):
        raise DataError(f"{path}: expected columns item_id and short_text, got {reader.fieldnames}")
    for row in reader:
        if not row["item_id"].isdecimal() or int(row["item_id"]) in items:
            raise DataError(
                f"{path}, line {reader.line_num}: expected a new item's number, "
                f"got {row['item_id']!r}"
            )
        item_id = int(row["item_id"])
        title = (row.get("title") or "").strip()
        # Where there is a title, the short text is a cut of it and adds nothing.
        text = title or (row["short_text"] or "").strip()
        items[item_id] = Item(item_id, title or None, text, labels.get(item_id, ()))
    return [items[item_id] for item_id in sorted(items)]
