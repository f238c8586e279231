"""What a data set's own reader returns: items with their texts, users with their histories."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Item:
    """An item as the raw files describe it.

    Attributes:
        item_id: the raw file's number.
        title: None where the files have none.
        text: what a text encoder should read; empty where there is nothing.
        attributes: labels such as genres; where the files give only numbers, `attribute<number>`.
    """

    item_id: int
    title: str | None
    text: str
    attributes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Raw:
    """A data set before it is split.

    Attributes:
        items: by ascending id, ids distinct.
        histories: user → item ids, oldest first; users in the raw file's order.
        files: the files that were read.
    """

    items: list[Item]
    histories: dict[int, list[int]]
    files: tuple[Path, ...]
