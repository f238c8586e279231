"""What the catalogue's file calls its ads: the index has no titles."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from pathlib import Path

import numpy as np

from grace.catalog.rows import iter_rows
from grace.index import Index

MOST = 200_000
"""Titles kept; ads of later rows go by their ids."""
FOUND = 20
"""The most suggestions."""


class Titles:
    """Titles by ad id.

    Args:
        path: a `.jsonl` or `.parquet` catalogue whose rows may have a `title`; None for no titles.

    Raises:
        CatalogError: if the file is missing or damaged.
    """

    def __init__(self, path: Path | None):
        rows = () if path is None else iter_rows(path, ("ad_id", "title"))
        self._titles = {
            row["ad_id"]: row["title"]
            for _, row in islice(rows, MOST)
            if isinstance(row.get("title"), str) and isinstance(row.get("ad_id"), (str, int))
        }
        # A rule or a request spells an ad's id as text.
        self._ids = {str(ad_id): ad_id for ad_id in self._titles}

    def __len__(self) -> int:
        return len(self._titles)

    def get(self, ad_id: str | int) -> str | None:
        """Return an ad's title, if it has one."""
        return self._titles.get(ad_id)

    def spelled(self, text: str) -> str | None:
        """Return the title of the ad whose id is spelled so."""
        return self._titles.get(self._ids.get(text))

    def cover(self, texts: Sequence[str]) -> bool:
        """Whether texts, of which there are some, are all ids of ads with titles."""
        return len(texts) > 0 and all(text in self._ids for text in texts)

    def find(self, text: str) -> list[str | int]:
        """Return ids of titles that hold a text in any case, those that begin with it first."""
        wanted = text.casefold()
        held = ((t.casefold(), ad_id) for ad_id, t in self._titles.items())
        found = [(not t.startswith(wanted), t, ad_id) for t, ad_id in held if wanted in t]
        return [ad_id for *_, ad_id in sorted(found, key=lambda row: row[:2])[:FOUND]]

    def examples(self, index: Index, positions: np.ndarray) -> list[str]:
        """Return what ads are called, by title or else by id."""
        return [self.get(ad_id) or f"ad {ad_id}" for ad_id in index.take_ad_ids(positions)]
