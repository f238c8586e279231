"""`test-log.jsonl` in a run folder: every time that the run was measured on the test split."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from grace.errors import DataError

LOG_FILE = "test-log.jsonl"
BEST = "best"


def append(run: Path, entry: Mapping[str, Any]) -> None:
    """Add a line to a run's log; it is on the disk when this returns.

    Args:
        run: run folder.
        entry: plain values; the time is added.
    """
    line = {"at": datetime.now(UTC).isoformat(timespec="seconds")} | dict(entry)
    with open(run / LOG_FILE, "a", encoding="utf-8") as file:
        file.write(json.dumps(line, ensure_ascii=False) + "\n")
        file.flush()
        os.fsync(file.fileno())


def checkpoint_digest(run: Path) -> str:
    """SHA-256 over the names and bytes of the files in a run's `best`: which weights were measured.

    Raises:
        DataError: if there are none.
    """
    folder = run / BEST
    paths = sorted(path for path in folder.rglob("*") if path.is_file()) if folder.is_dir() else []
    if not paths:
        raise DataError(f"{run}: holds no {BEST}; expected a run folder of `grace train --data`")
    digest = hashlib.sha256()
    for path in paths:
        name = str(path.relative_to(folder)).encode()
        content = path.read_bytes()
        for part in (name, content):
            digest.update(len(part).to_bytes(8, "little") + part)
    return digest.hexdigest()
