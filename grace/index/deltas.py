"""Where changes come from: a stream of deltas, each with the watermark that stands for it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from grace.catalog import Changes, Schema, read_changes
from grace.catalog.rows import SUFFIXES
from grace.catalog.values import describe
from grace.errors import CatalogError, DataError


@dataclass(frozen=True)
class Delta:
    """One step of a change stream.

    Attributes:
        watermark: stands for this delta and all before it; kept with the version that holds them.
        name: what messages call it.
        changes: what it says.
    """

    watermark: str
    name: str
    changes: Changes


class ChangeSource(Protocol):
    """A change stream: a directory of files, a topic with its offsets."""

    def poll(self, after: str | None) -> Iterator[Delta]:
        """Yield the deltas that are complete now and come after a watermark, in order.

        It must yield the same deltas with the same watermarks again if asked again from the same
        watermark: that is how a killed builder neither skips nor repeats one.

        Args:
            after: the watermark of the last delta applied; None before the first.

        Raises:
            DataError: where a delta cannot be read, after yielding those before it.
        """


def bad_delta(name: str, error: CatalogError) -> DataError:
    """Say which delta an error is in and what to do; the row and the field stand in the error."""
    said = str(error).removeprefix(f"{name}: ")
    return DataError(f"{name}: {said}; mend it under the same name and start again")


class DeltaDirectory:
    """Files in a directory, ordered by name; the watermark is the name of the last one applied.

    A file counts once it has its name: it is written as `.name`, `_name` or `name.tmp` beside its
    place and renamed. It never changes after that, and a later one sorts after it.
    """

    def __init__(self, directory: str | os.PathLike, schema: Schema, workers: int = 1):
        self._directory = Path(directory)
        self._schema = schema
        self._workers = workers
        self._listed: set[str] | None = None

    def poll(self, after: str | None) -> Iterator[Delta]:
        """Yield the deltas after a file's name.

        Raises:
            DataError: naming the file, the row and the field; also for a file that came too late.
        """
        for name in self._names_after(after):
            path = self._directory / name
            try:
                changes = read_changes(path, self._schema, self._workers)
            except CatalogError as error:
                raise bad_delta(str(path), error) from None
            yield Delta(name, str(path), changes)

    def _names_after(self, after: str | None) -> list[str]:
        try:
            entries = list(os.scandir(self._directory))
        except OSError as error:
            raise DataError(f"{self._directory}: cannot be listed: {error.strerror}") from None
        names = set()
        for entry in entries:
            if entry.name.startswith((".", "_")) or entry.name.endswith(".tmp"):
                continue
            if not entry.name.endswith(SUFFIXES) or not entry.is_file():
                raise DataError(
                    f"{entry.path}: expected a file ending in {' or '.join(SUFFIXES)}; remove it, "
                    "or let its name start with . or _"
                )
            if not entry.name.isprintable():
                raise DataError(
                    f"{self._directory}: expected names of printable text, got "
                    f"{describe(entry.name)}; rename it"
                )
            names.add(entry.name)
        if self._listed is None:
            self._listed = set(names)  # those before the watermark were applied by an earlier run
        late = sorted(name for name in names - self._listed if after is not None and name <= after)
        if late:
            raise DataError(
                f"{self._directory / late[0]}: came after {after} was applied, but sorts before "
                "it; rename it to sort last (pad numbers with zeros)"
            )
        self._listed |= names
        return sorted(name for name in names if after is None or name > after)
