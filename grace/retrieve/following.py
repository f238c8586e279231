"""A retriever that stays: each call answers from the newest version of an index directory."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from grace.index import Index
from grace.index.reader import IndexReader
from grace.retrieve.result import Result
from grace.retrieve.retriever import Retriever


class FollowingRetriever:
    """Answers as `Retriever` does; versions published or rolled back meanwhile take over by call.

    A call keeps the version it began with to its end, so no answer mixes two.

    Args:
        directory: of the index.
        model: as for `Retriever`. A new version that it does not fit (a larger vocabulary, another
            number of levels) is not moved to: `reader.failure` says why.
        options: all others of `Retriever`.

    Attributes:
        reader: the `IndexReader`; its `current` is what to pause ads on.
    """

    def __init__(self, directory: str | os.PathLike, model: Any, **options: Any):
        if isinstance(model, (str, os.PathLike)):
            from grace.model.folder import open_model

            model = open_model(model)

        def prepare(index: Index) -> Retriever:
            return Retriever(index, model, **options)

        self.reader = IndexReader(directory, prepare)

    def retrieve(self, requests: Sequence[dict], trace: bool = False) -> list[Result]:
        """Answer requests; see `Retriever.retrieve`."""
        return self.reader.prepared.retrieve(requests, trace)
