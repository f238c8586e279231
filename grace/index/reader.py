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

    The version before stays in memory until a third one comes: going back to it takes no time. Its
    place is freed before the third is opened, so two are held at most.

    Attributes:
        failure: why the version that CURRENT names is not the one held, or None; also logged.
    """

    def __init__(
        self,
        directory: str | os.PathLike,
        prepare: Callable[[Index], T] = lambda index: index,
        retire: Callable[[T], None] = lambda prepared: None,
    ):
        """Open the current version.

        Args:
            directory: of the index.
            prepare: makes what each version needs before its first batch, such as a `Retriever`.
            retire: ends what `prepare` made, once it is kept no more and before the next version
                takes memory.

        Raises:
            IndexFormatError: if the version cannot be opened.
        """
        self._directory = Path(directory)
        self._prepare, self._retire = prepare, retire
        self._held = self._open()
        self._previous: tuple[Index, T] | None = None
        self.failure: Exception | None = None
        self._tried: tuple[str, float] | None = None  # the version that failed, and when
        self._opening = threading.Lock()

    @property
    def directory(self) -> Path:
        """Where the versions come from."""
        return self._directory

    @property
    def held(self) -> Index:
        """The version that answered last; unlike `current` it touches no disk and never fails."""
        return self._held[0]

    @property
    def current(self) -> Index:
        """The newest version that is open, with the ad states of this moment.

        Raises:
            IndexFormatError: if the log of ad states is damaged: which ads are paused is unknown.
            OSError: if it cannot be read.
        """
        return self._check()[0]

    @property
    def prepared(self) -> T:
        """What `prepare` made of `current`, which says what is raised."""
        return self._check()[1]

    def refresh(self) -> Index:
        """Open the version that CURRENT names now, wait for it, and return it.

        Raises:
            IndexFormatError: if it cannot be opened; the version held stays. What `prepare` raises
                is raised, too.
        """
        with self._opening:
            try:
                self._move()
            except Exception as error:
                self._note(error)
                raise
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
                if self._is_previous(named):  # nothing to open: this batch has it
                    self._move_quietly()
                else:
                    threading.Thread(target=self._move_quietly, daemon=True).start()
        held = self._held
        try:
            held[0].catch_up()
        except (IndexFormatError, OSError) as error:
            self._note(error)
            raise
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
        if self._is_previous(named):
            held = self._previous
        else:
            self._drop_previous()
            try:
                held = self._open()
            except BaseException:
                self._tried = named, time.monotonic()
                raise
        self._held, self._previous = held, self._held
        self.failure = self._tried = None

    def _drop_previous(self) -> None:
        if self._previous is not None:
            self._retire(self._previous[1])
            self._previous = None

    def _is_previous(self, version: str) -> bool:
        return self._previous is not None and self._previous[0].version == version

    def _open(self) -> tuple[Index, T]:
        index = Index.open(self._directory)
        return index, self._prepare(index)

    def _note(self, error: Exception) -> None:
        if str(error) != str(self.failure):
            _log.warning("stays at version %s: %s", self._held[0].version, error)
        self.failure = error
