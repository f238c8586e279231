"""Which version was made current when, from which changes: one line each, and CURRENT follows.

    DIR/CURRENT          the version that readers open
    DIR/history.jsonl    every time a version was made current, oldest first

A version is named by its content and says nothing of time; what differs between two publications
of one content (when, after which version, up to which delta) stands here. A line is on disk before
CURRENT is replaced. So at most the last line names a version that a killed writer did not make
current; the next writer cuts it off. All writing here happens under the index's writer lock.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from grace.catalog.values import describe
from grace.errors import ConfigError, IndexFormatError
from grace.files import atomic_write, sync_directory
from grace.index import state_log

CURRENT, HISTORY, VERSIONS = "CURRENT", "history.jsonl", "versions"
REMOVED = ".removed-"
DEFAULT_KEEP = 3
MAX_LINES = 1000  # past them the oldest half goes


@dataclass(frozen=True)
class Publication:
    """A version made current once.

    Attributes:
        version: its id.
        created: ISO 8601, UTC.
        action: `build`, `watch` or `rollback`.
        parent: another version that was current before, or, of a rollback, before the version's
            own publication; None for the first.
        watermark: the last delta that the content holds; None before the first.
        counts: `ads`, `sids` and so on, as in the manifest.
    """

    version: str
    created: str
    action: str
    parent: str | None
    watermark: str | None
    counts: dict[str, int]


def utc_now() -> str:
    """Return the time as `created` holds it."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def read_current(directory: Path) -> str:
    """Return the id that CURRENT names.

    Raises:
        IndexFormatError: if there is none.
    """
    if not directory.is_dir():
        raise IndexFormatError(f"{directory}: no such directory")
    try:
        version = (directory / CURRENT).read_text(encoding="ascii").strip()
    except FileNotFoundError:
        raise IndexFormatError(f"{directory}: holds no index (no file {CURRENT})") from None
    except (OSError, UnicodeDecodeError) as error:
        raise IndexFormatError(f"{directory / CURRENT}: cannot be read: {error}") from None
    if len(version) != 16 or not version.isalnum():
        raise IndexFormatError(f"{directory / CURRENT}: names no version, but {version[:40]!r}")
    return version


def find_current(directory: Path) -> str | None:
    """Return the id that CURRENT names, or None where a writer has to begin anew."""
    try:
        return read_current(directory)
    except IndexFormatError:
        return None


def check_watermark(watermark: str | None) -> None:
    """Refuse a watermark that is no name of a file.

    Raises:
        ConfigError: if it is empty, has line ends or cannot be held by UTF-8.
    """
    if watermark is None:
        return
    if not watermark or not watermark.isprintable():
        raise ConfigError(f"watermark: expected the name of a delta, got {describe(watermark)}")


def read_history(directory: Path) -> list[Publication]:
    """Return all publications, oldest first, without a last one that never became current.

    Raises:
        IndexFormatError: if a finished line is damaged, naming it.
    """
    path = directory / HISTORY
    current = find_current(directory)
    try:
        *finished, _ = path.read_bytes().split(b"\n")
    except FileNotFoundError:
        return []
    found = []
    for number, line in enumerate(finished, start=1):
        try:
            entry = Publication(**json.loads(line))
            texts = (entry.version, entry.created, entry.action)
            options = (entry.parent, entry.watermark)
            if not all(isinstance(text, str) for text in texts) or not all(
                isinstance(text, str | None) for text in options
            ):
                raise ValueError
            if not all(type(entry.counts[name]) is int for name in ("ads", "sids")):
                raise ValueError
            check_watermark(entry.watermark)
        except (ValueError, TypeError, KeyError, ConfigError, RecursionError):
            raise IndexFormatError(
                f"{path}: line {number} is damaged; repair or remove this line: it says which "
                "delta a version holds"
            ) from None
        found.append(entry)
    before = [entry.version for entry in found[-2:-1]] or [current]
    if found and found[-1].version != current and before == [current]:
        found.pop()  # its writer was killed before CURRENT was replaced
    return found


def current_publication(directory: Path) -> Publication | None:
    """Return how the current version came to be, or None where no line says so."""
    current = read_current(directory)
    named = [entry for entry in read_history(directory) if entry.version == current]
    return named[-1] if named else None


def parent_of(directory: Path, version: str) -> str | None:
    """Return the version that was current before one that is about to be made current."""
    current = find_current(directory)
    if version != current:
        return current
    published = current_publication(directory)  # the same content again: nothing came before it
    return published.parent if published else None


def commit(directory: Path, publication: Publication, keep: int) -> None:
    """Make a version current, then tidy: old versions, old lines, the log of ad states.

    Killed at any point, CURRENT names the old version or the new one, and the history's last line
    for it is true.

    Args:
        directory: of the index; the caller holds its writer lock.
        publication: of a version that is on disk.
        keep: versions to leave, the current one among them.
    """
    entries = read_history(directory)
    _append(directory, entries, publication)
    entries.append(publication)
    with atomic_write(directory / CURRENT) as file:
        file.write(publication.version.encode() + b"\n")
    _prune(directory, entries, keep)
    _shorten(directory, entries)
    state_log.compact(directory)


def _append(directory: Path, entries: list[Publication], publication: Publication) -> None:
    """Add a line behind those of `entries`; what else the file holds was never acknowledged."""
    path = directory / HISTORY
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        content = os.pread(descriptor, os.fstat(descriptor).st_size, 0)
        lines = content.split(b"\n")[: len(entries)]
        end = sum(len(line) + 1 for line in lines)
        os.ftruncate(descriptor, end)
        rest = memoryview(_line(publication))
        while rest:
            written = os.pwrite(descriptor, rest, end)
            rest, end = rest[written:], end + written
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    sync_directory(directory)


def _prune(directory: Path, entries: list[Publication], keep: int) -> None:
    """Remove all but the last versions; a reader that has mapped one keeps it until it closes.

    A version leaves its name in one step, so that none can be found half removed. What cannot be
    removed now, or was left by a killed writer, goes the next time.
    """
    versions = directory / VERSIONS
    for version in stored_versions(directory, entries)[keep:]:
        os.rename(versions / version, versions / f"{REMOVED}{version}")
    for removed in versions.glob(f"{REMOVED}*"):
        shutil.rmtree(removed, ignore_errors=True)


def stored_versions(directory: Path, entries: list[Publication]) -> list[str]:
    """Return the ids of the versions on disk, the current one first, then the latest first."""
    latest = {entry.version: number for number, entry in enumerate(entries)}
    current = read_current(directory)
    folders = []
    for path in (directory / VERSIONS).iterdir():
        with contextlib.suppress(FileNotFoundError):  # a writer may be removing it
            if path.is_dir() and not path.name.startswith("."):
                place = latest.get(path.name, -1), path.stat().st_mtime_ns
                folders.append((path.name == current, *place, path.name))
    return [name for *_, name in sorted(folders, reverse=True)]


def _shorten(directory: Path, entries: list[Publication]) -> None:
    """Forget old lines, but never the last one of a version that is on disk."""
    if len(entries) <= MAX_LINES:
        return
    latest = {entry.version: number for number, entry in enumerate(entries)}
    needed = {latest[v] for v in stored_versions(directory, entries) if v in latest}
    first = len(entries) - MAX_LINES // 2
    with atomic_write(directory / HISTORY) as file:
        for number, entry in enumerate(entries):
            if number >= first or number in needed:
                file.write(_line(entry))


def _line(publication: Publication) -> bytes:
    return json.dumps(asdict(publication), ensure_ascii=False).encode() + b"\n"
