"""Ads paused and bids switched off between builds: a log that is on disk before it counts.

One JSON object a line, `{"paused": true, "ad_ids": [...]}` or `{"bid_off": true, "ad_ids": [...]}`;
the last line that names an ad has the last word. Several processes may append and follow the log.
"""

from __future__ import annotations

import fcntl
import json
import os
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from grace.errors import IndexFormatError
from grace.files import atomic_write, sync_directory

LOG = "pauses.log"
# What a line may switch, and the bit of an ad's state that it is. An ad is live where all are 0.
FLAGS = {"paused": 1, "bid_off": 2}

# Per flag, the last state of every ad that some lines name.
States = dict[str, dict[str | int, bool]]


def append(directory: Path, flag: str, on: bool, ad_ids: Sequence[str | int]) -> None:
    """Add one line to the log and wait until the disk has it.

    A line that a killed writer left unfinished was never acknowledged: it is cut off first.
    """
    with _locked(directory / LOG) as descriptor:
        end = os.fstat(descriptor).st_size
        if end and os.pread(descriptor, 1, end - 1) != b"\n":
            end = os.pread(descriptor, end, 0).rfind(b"\n") + 1
            os.ftruncate(descriptor, end)
        _write(descriptor, _line(flag, on, ad_ids))
        os.fsync(descriptor)
        if end == 0:
            sync_directory(directory)  # the file may be new, and its name not on disk yet


def compact(directory: Path) -> None:
    """Replace the log by one that holds the last state of each ad only.

    Killed at any point, the log is the old or the new one; both say the same.
    """
    path = directory / LOG
    if not path.exists():
        return
    with _locked(path) as descriptor:
        content = os.pread(descriptor, os.fstat(descriptor).st_size, 0)
        lines = []
        for flag, ads in _parse(path, content, 1)[0].items():
            for on in (True, False):
                named = [ad_id for ad_id, state in ads.items() if state is on]
                lines += [_line(flag, on, named)] if named else []
        shorter = b"".join(lines)
        if len(shorter) < len(content):
            with atomic_write(path) as file:
                file.write(shorter)


class LogReader:
    """Reads what a log says since the last time, also where it was compacted in between.

    The file stays open, so that its inode number cannot name another file.
    """

    def __init__(self, directory: Path):
        self._path = directory / LOG
        self._inode = self._descriptor = None
        self._offset = self._lines = 0

    def read(self) -> States:
        """Return the last states in the lines that are new; a whole new log is read from its start.

        Raises:
            IndexFormatError: if a finished line is damaged, naming it.
        """
        try:
            found = os.stat(self._path)
        except FileNotFoundError:
            return {}
        if (found.st_dev, found.st_ino) != self._inode or found.st_size < self._offset:
            self._open()
        elif found.st_size == self._offset:
            return {}
        size = os.fstat(self._descriptor).st_size
        content = os.pread(self._descriptor, size - self._offset, self._offset)
        states, length, lines = _parse(self._path, content, self._lines + 1)
        self._offset += length
        self._lines += lines
        return states

    def _open(self) -> None:
        descriptor = os.open(self._path, os.O_RDONLY)
        if self._descriptor is not None:
            self._close()
        self._close = weakref.finalize(self, os.close, descriptor)
        found = os.fstat(descriptor)
        self._descriptor, self._inode = descriptor, (found.st_dev, found.st_ino)
        self._offset = self._lines = 0


def _parse(path: Path, content: bytes, first: int) -> tuple[States, int, int]:
    """Return the states of the finished lines, those lines' length in bytes, and their number."""
    states: States = {}
    *finished, unfinished = content.split(b"\n")
    for number, line in enumerate(finished, start=first):
        try:
            entry = json.loads(line)
            (flag,) = entry.keys() - {"ad_ids"}
            if flag not in FLAGS or type(entry[flag]) is not bool:
                raise ValueError
            ids = entry["ad_ids"]
            if type(ids) is not list or not all(type(ad_id) in (str, int) for ad_id in ids):
                raise ValueError
            "".join(ad_id for ad_id in ids if type(ad_id) is str).encode()  # UTF-8 must hold them
            states.setdefault(flag, {}).update(dict.fromkeys(ids, entry[flag]))
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            raise IndexFormatError(
                f"{path}: line {number} is damaged; repair or remove it: what it paused is unknown"
            ) from None
    return states, len(content) - len(unfinished), len(finished)


def _line(flag: str, on: bool, ad_ids: Sequence[str | int]) -> bytes:
    return json.dumps({flag: on, "ad_ids": list(ad_ids)}, ensure_ascii=False).encode() + b"\n"


def _write(descriptor: int, content: bytes) -> None:
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


@contextmanager
def _locked(path: Path) -> Iterator[int]:
    """Open the log for one writer; a compaction may have replaced the file before the lock came."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            if os.path.samestat(os.fstat(descriptor), os.stat(path)):
                yield descriptor
                return
        finally:
            os.close(descriptor)
