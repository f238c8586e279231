"""The versions of an index on disk: list them, go back to one."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from grace.errors import IndexFormatError
from grace.index import storage
from grace.index.history import (
    DEFAULT_KEEP,
    VERSIONS,
    Publication,
    commit,
    read_current,
    read_history,
    stored_versions,
    utc_now,
)


@dataclass(frozen=True)
class Version:
    """A version on disk: its latest publication, and whether it is the current one now."""

    version: str
    created: str
    action: str
    parent: str | None
    watermark: str | None
    counts: dict[str, int]
    current: bool

    def to_dict(self) -> dict:
        """Return the form that `grace index versions --json` prints."""
        return asdict(self)


def list_versions(directory: str | os.PathLike) -> list[Version]:
    """Return the versions on disk: the current one first, then the latest first.

    Raises:
        IndexFormatError: if the directory holds no index, or its history is damaged.
    """
    directory = Path(directory)
    current = read_current(directory)
    entries = read_history(directory)
    latest = {entry.version: entry for entry in entries}
    return [
        Version(
            **vars(latest.get(version) or _unrecorded(directory, version)),
            current=version == current,
        )
        for version in stored_versions(directory, entries)
    ]


def rollback(
    directory: str | os.PathLike, to: str | None = None, keep: int = DEFAULT_KEEP
) -> Publication:
    """Make an older version current again, with its watermark; readers move to it by themselves.

    Args:
        directory: of the index.
        to: the version's id; by default the one that was current before this one was published.
        keep: versions to leave on disk.

    Returns:
        The publication of the version that is current now.

    Raises:
        IndexFormatError: if that version is not on disk or is damaged; then nothing changes.
        ValueError: if `keep` is below 1.
    """
    if keep < 1:
        raise ValueError(f"keep must be at least 1, got {keep}")
    directory = Path(directory)
    read_current(directory)  # before a lock file is put into a folder that is no index
    with storage.writer_lock(directory):
        stored = {version.version: version for version in list_versions(directory)}
        present = stored.get(read_current(directory))
        target = to or (present and present.parent)
        if target is None:
            raise IndexFormatError(f"{directory}: no version is known from before the current one")
        if target not in stored:
            raise IndexFormatError(
                f"{directory}: has no version {target!r}; it has {', '.join(stored)}"
            )
        storage.load_version(directory, target)  # whole, or it must not become current
        old = stored[target]
        publication = Publication(
            target, utc_now(), "rollback", old.parent, old.watermark, old.counts
        )
        commit(directory, publication, keep)
    return publication


def _unrecorded(directory: Path, version: str) -> Publication:
    """Describe a version from before there was a history, or whose writer was killed."""
    folder = directory / VERSIONS / version
    manifest = storage.read_manifest(folder, version)
    written = datetime.fromtimestamp((folder / storage.MANIFEST).stat().st_mtime, UTC)
    return Publication(
        version, written.isoformat(timespec="milliseconds"), "build", None, None, manifest["counts"]
    )
