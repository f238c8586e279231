"""A reader that stays: it holds one open version and moves on to newer ones between batches."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

from grace.errors import IndexFormatError
from grace.index.history import read_current
from grace.index.index import Index

T = TypeVar("T")
RETRY_S = 10.0  # after a version could not be opened; a change of CURRENT is tried at once

_log = logging.getLogger(__name__)


class IndexReader(Generic[T]):
    """Follows an index's directory for as long as a server runs.

    Whoever takes `current` (or `prepared`) once per batch has one version for the whole batch: an
    `Index` never changes its arrays, and an old one works until nobody holds it, even after its
    files were removed. A new version is opened, checked and prepared in a thread of its own; until
    then `current` is the old one. Every time, it has caught up with the log of ad states: an ad
    that any process paused before a batch began is in no answer of the batch.

    Attributes:
        failure: why the version that CURRENT names is not the one held, or None; also logged.
    """

    def __init__(
        self, directory: str | os.PathLike, prepare: Callable[[Index], T] = lambda index: index
    ):
        """Open the current version.

        Args:
            directory: of the index.
            prepare: makes what each version needs before its first batch, such as a `Retriever`.

        Raises:
            IndexFormatError: if the version cannot be opened.
        """
        self._directory = Path(directory)
        self._prepare = prepare
        self._held = self._open()
        self.failure: Exception | None = None
        self._tried: tuple[str, float] | None = None  # the version that failed, and when
        self._opening = threading.Lock()

    @property
    def current(self) -> Index:
        """The newest version that is open, with the ad states of this moment."""
        return self._check()[0]

    @property
    def prepared(self) -> T:
        """What `prepare` made of `current`."""
        return self._check()[1]

    def refresh(self) -> Index:
        """Open the version that CURRENT names now, wait for it, and return it.

        Raises:
            IndexFormatError: if it cannot be opened; the version held stays.
        """
        with self._opening:
            self._move()
        return self.current

    def _check(self) -> tuple[Index, T]:
        try:
            named = read_current(self._directory)
        except IndexFormatError as error:
            self._note(error)
        else:
            if named == self._held[0].version:
                self.failure = None
            elif self._may_try(named) and self._opening.acquire(blocking=False):
                threading.Thread(target=self._move_quietly, daemon=True).start()
        held = self._held
        held[0].catch_up()
        return held

    def _may_try(self, version: str) -> bool:
        tried = self._tried
        return tried is None or tried[0] != version or time.monotonic() - tried[1] > RETRY_S

    def _move_quietly(self) -> None:
        try:
            self._move()
        except Exception as error:
            # Whatever is wrong with the new version, requests are answered from the old one.
            self._note(error)
        finally:
            self._opening.release()

    def _move(self) -> None:
        named = read_current(self._directory)
        if named == self._held[0].version:
            return
        try:
            held = self._open()
        except BaseException:
            self._tried = named, time.monotonic()
            raise
        self._held, self.failure, self._tried = held, None, None

    def _open(self) -> tuple[Index, T]:
        index = Index.open(self._directory)
        return index, self._prepare(index)

    def _note(self, error: Exception) -> None:
        if str(error) != str(self.failure):
            _log.warning("stays at version %s: %s", self._held[0].version, error)
        self.failure = error
