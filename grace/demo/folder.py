"""The folder that the demo leaves behind: replaced as a whole, or left as it was."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from grace.errors import ConfigError

REPORT_FILE = "demo.json"


@contextlib.contextmanager
def replaced_folder(out: str | os.PathLike) -> Iterator[Path]:
    """Yield an empty neighbour of `out` that takes its place when the block ends without an error.

    Raises:
        ConfigError: if `out` holds something that no earlier demo wrote; it is not touched.
    """
    out = Path(out).absolute()
    if out.exists() and not (out / REPORT_FILE).is_file() and not _is_empty(out):
        raise ConfigError(f"{out}: holds something else than a demo's files; name another folder")
    out.parent.mkdir(parents=True, exist_ok=True)
    made, old = (out.with_name(f".{out.name}.{os.getpid()}.{end}") for end in ("tmp", "old"))
    made.mkdir()
    try:
        yield made
        if out.exists():
            out.rename(old)
        made.rename(out)
    except BaseException:
        shutil.rmtree(made, ignore_errors=True)
        if old.exists() and not out.exists():
            old.rename(out)
        raise
    shutil.rmtree(old, ignore_errors=True)


def _is_empty(path: Path) -> bool:
    return path.is_dir() and not any(path.iterdir())
