"""Lists of a run, kept in its folder: fused with others or measured anew, they are not made again."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from grace.datasets import Sequences
from grace.datasets.prepare import MANIFEST
from grace.evaluate.ranking.testlog import checkpoint_digest
from grace.files import atomic_write


def cached_lists(
    run: Path, data: Sequences, split: str, settings: Mapping, rank: Callable[[], np.ndarray]
) -> np.ndarray:
    """Return int64 `[U, K]`, from `lists-<split>.npz` where that is of these weights and users.

    Args:
        run: run folder; its `best` made the lists.
        data: the data set.
        split: of the users.
        settings: plain values on which the lists depend.
        rank: makes the lists.

    Raises:
        DataError: if the run holds no `best`.
    """
    manifest = json.loads((data.directory / MANIFEST).read_bytes())
    key = json.dumps(
        {
            "best": checkpoint_digest(run),
            "users": manifest["files"][f"{split}.parquet"],
            **settings,
        }
    )
    path = run / f"lists-{split}.npz"
    try:
        with np.load(path, allow_pickle=False) as kept:
            if str(kept["key"]) == key:
                # Stored from 0, for none, so that 16 bits reach as far as they can.
                return kept["lists"].astype(np.int64) - 1
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        pass  # not there, or torn: made below
    ranked = rank()
    small = np.uint16 if data.num_items < np.iinfo(np.uint16).max else np.uint32
    with atomic_write(path) as file:
        np.savez_compressed(file, key=np.array(key), lists=(ranked + 1).astype(small))
    return ranked
