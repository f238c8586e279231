"""Ads paused and resumed between builds: an append-only log that is on disk before it counts."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Sequence
from pathlib import Path

from grace.errors import IndexFormatError

LOG = "pauses.log"


def append(directory: Path, paused: bool, ad_ids: Sequence[str | int]) -> None:
    """Add one line to the log and wait until the disk has it.

    A line that a killed writer left unfinished was never acknowledged: it is cut off first.
    """
    path = directory / LOG
    line = json.dumps({"paused": paused, "ad_ids": list(ad_ids)}, ensure_ascii=False) + "\n"
    with open(path, "a+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        file.truncate(file.read().rfind(b"\n") + 1)
        file.write(line.encode())
        file.flush()
        os.fsync(file.fileno())


def replay(directory: Path) -> dict[str | int, bool]:
    """Return the last state of every ad that the log names.

    Raises:
        IndexFormatError: if a finished line is damaged, naming it.
    """
    path = directory / LOG
    if not path.exists():
        return {}
    states: dict[str | int, bool] = {}
    *finished, _ = path.read_bytes().split(b"\n")
    for number, line in enumerate(finished, start=1):
        try:
            entry = json.loads(line)
            if type(entry["paused"]) is not bool or type(entry["ad_ids"]) is not list:
                raise ValueError
            states.update(dict.fromkeys(entry["ad_ids"], entry["paused"]))
        except (ValueError, TypeError, KeyError, RecursionError):
            raise IndexFormatError(
                f"{path}: line {number} is damaged; repair or remove it: what it paused is unknown"
            ) from None
    return states
