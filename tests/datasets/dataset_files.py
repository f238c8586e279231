"""A tiny data set in the raw form of Amazon 2014."""

from __future__ import annotations

import csv
import gzip
import json
from pathlib import Path

import numpy as np

from grace.datasets import Dataset, Raw, Statistics
from grace.datasets.amazon import read_amazon


def histories(num_users: int = 30, num_items: int = 40, seed: int = 0) -> dict[int, list[int]]:
    """Users with 5 to 9 different items; every item is somebody's."""
    rng = np.random.default_rng(seed)
    made = {
        user: rng.choice(num_items, rng.integers(5, 10), replace=False) + 1
        for user in range(1, num_users + 1)
    }
    lists = {user: items.tolist() for user, items in made.items()}
    missing = set(range(1, num_items + 1)) - {i for items in lists.values() for i in items}
    for user, item in enumerate(sorted(missing), start=1):
        lists[user].append(item)
    return lists


def write_raw(folder: Path, sequences: dict[int, list[int]], num_items: int = 40) -> Path:
    """Write `Tiny.txt.gz` and the two files about its items."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = "".join(f"{user} {' '.join(map(str, items))}\n" for user, items in sequences.items())
    (folder / "Tiny.txt.gz").write_bytes(gzip.compress(lines.encode()))
    with open(folder / "Tiny_items.csv", "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["item_id", "asin", "title", "short_text"])
        for item in range(1, num_items + 1):
            title = "" if item % 5 == 0 else f"Thing, number\u2028{item}"
            writer.writerow([item, f"B{item}", title, "" if item == 10 else f"thing {item}"])
    labels = {str(item): [item % 3, 7] for item in range(1, num_items + 1) if item != 4}
    (folder / "Tiny_item2attributes.json").write_text(json.dumps(labels))
    return folder


def read_tiny(root: Path) -> Raw:
    return read_amazon(root, "Tiny")


def tiny(sequences: dict[int, list[int]], **other: int) -> Dataset:
    """The data set that `write_raw` wrote; `other` states wrong figures."""
    right = {
        "users": len(sequences),
        "items": len({item for items in sequences.values() for item in items}),
        "interactions": sum(map(len, sequences.values())),
    }
    return Dataset("tiny", read_tiny, Statistics(**{**right, **other}), "the tests")
