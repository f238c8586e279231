"""Lists of a run, kept in its folder: to fuse or measure them again, no model has to run."""

from __future__ import annotations

import hashlib
import json
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from grace.datasets import Split
from grace.evaluate.ranking.testlog import checkpoint_digest
from grace.files import atomic_write


def cached_lists(
    run: Path, users: Split, settings: Mapping[str, Any], rank: Callable[[], np.ndarray]
) -> np.ndarray:
    """Return int64 `[U, K]`, from `lists-<split>.npz` where that is of these weights and users.

    Args:
        run: run folder; its `best` made the lists.
        users: whom they are for.
        settings: plain values on which the lists depend.
        rank: makes the lists.

    Raises:
        DataError: if the run holds no `best`.
    """
    key = json.dumps({"best": checkpoint_digest(run), "users": _digest(users), **settings})
    path = run / f"lists-{users.name}.npz"
    try:
        with np.load(path, allow_pickle=False) as kept:
            if str(kept["key"]) == key:
                # Kept with 0 for none, so that 16 bits reach as far as they can.
                return kept["lists"].astype(np.int64) - 1
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        pass  # not there, or torn: made below
    ranked = rank()
    small = np.uint16 if len(users.item_ids) < np.iinfo(np.uint16).max else np.uint32
    with atomic_write(path) as file:
        np.savez_compressed(file, key=np.array(key), lists=(ranked + 1).astype(small))
    return ranked


def _digest(users: Split) -> str:
    digest = hashlib.sha256()
    for array in (users.users, users.offsets, users.items, users.targets, users.item_ids):
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()
