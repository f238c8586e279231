"""Files at the boundary: written whole or not at all, read with faults that fit one line."""

from __future__ import annotations

import contextlib
import errno
import glob
import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO


@contextlib.contextmanager
def atomic_write(path: str | os.PathLike) -> Iterator[BinaryIO]:
    """Open a binary file that replaces `path` when the block ends without an error.

    The bytes go to a hidden neighbour first and reach the disk before the rename, so a reader
    (or a machine that loses power) sees the old file or the new one. On an error the neighbour is
    removed; one that a killed process left goes when the same file is next written. A symbolic
    link keeps pointing to its file; a device or a pipe is written to, since nothing can replace it.
    """
    path = Path(os.path.realpath(path))
    if path.exists() and not path.is_file() and not path.is_dir():
        with open(path, "wb") as file:
            yield file
        return
    check_writable(path)
    for abandoned in path.parent.glob(f".{glob.escape(path.name)}.*.tmp"):
        process = abandoned.name.split(".")[-2]
        if process.isdigit() and not _is_running(int(process)):
            abandoned.unlink(missing_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_directory(path.parent)


def check_writable(path: str | os.PathLike) -> None:
    """Raise OSError, naming the path as it was given, if no file can be written there.

    For commands that would otherwise find out only after their work.
    """
    parent = Path(path).parent
    if Path(path).is_dir():
        raise IsADirectoryError(errno.EISDIR, "is a directory; name a file", str(path))
    if not parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, "its folder does not exist", str(path))


def _is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):  # somebody else's, or no process id at all
        return True
    return True


def read_yaml(path: str | os.PathLike) -> object:
    """Return what a YAML file holds.

    Raises:
        OSError: if it cannot be read.
        ValueError: if it is no YAML, saying in one line why.
    """
    import yaml

    # What PyYAML lets out for scalars that are no date, number or boolean, and for deep nesting.
    stray = (KeyError, AttributeError, OverflowError, RecursionError)
    try:
        return yaml.safe_load(Path(path).read_text(encoding="utf-8-sig"))
    except (yaml.YAMLError, ValueError, *stray) as error:
        raise ValueError(" ".join(str(error).split())) from None


def sync_directory(path: Path) -> None:
    """Make the names in a directory durable: a rename is not, until its directory is synced."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
