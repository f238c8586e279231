"""A delta of a catalogue: ads that are new or changed, and ids of ads that are gone."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from grace.catalog.reader import ALWAYS, COLUMNS, Catalog, read_catalog
from grace.catalog.rows import iter_rows
from grace.catalog.schema import Schema
from grace.catalog.values import describe
from grace.errors import CatalogError


@dataclass(frozen=True)
class Changes:
    """What one delta says.

    Attributes:
        ads: rows that take the place of an ad's row, or add it; may hold none.
        removed: int64 or string array, ids of ads that are no longer in the catalogue.
    """

    ads: Catalog
    removed: pa.Array


def read_changes(source: object, schema: Schema, workers: int = 1) -> Changes:
    """Read and check a delta: the catalogue's columns, and optionally a bool column `removed`.

    Args:
        source: what `iter_rows` takes.
        schema: the attributes that rules may name.
        workers: threads; the result does not depend on them.

    Raises:
        CatalogError: naming the row, the field, what was expected and what came.
    """
    rows, numbers, removed = [], [], {}
    for number, row in iter_rows(source, (*COLUMNS, "removed")):
        gone = row.get("removed")
        if gone is not None and not isinstance(gone, (bool, np.bool_)):
            raise CatalogError(f"expected true or false, got {describe(gone)}", number, "removed")
        if gone:
            ad_id = row.get("ad_id")
            if type(ad_id) not in (str, int):
                raise CatalogError(
                    f"expected a string or an integer, got {describe(ad_id)}", number, "ad_id"
                )
            if ad_id in removed:
                raise CatalogError(f"{ad_id!r} is named twice", number, "ad_id")
            removed[ad_id] = number
        else:
            rows.append({name: value for name, value in row.items() if name != "removed"})
            numbers.append(number)
    try:
        ads = read_catalog(rows, schema) if rows else _no_ads(schema, removed)
    except CatalogError as error:
        if error.row is None:
            raise
        said = str(error).removeprefix(f"row {error.row}").removeprefix(f", {error.field}")
        row = numbers[error.row - 1]
        raise CatalogError(said.removeprefix(": "), row, error.field) from None
    for number, ad_id in zip(numbers, ads.ad_ids.to_pylist(), strict=True):
        if ad_id in removed:
            raise CatalogError(f"{ad_id!r} is removed in row {removed[ad_id]}", number, "ad_id")
    try:
        return Changes(ads, pa.array(list(removed), ads.ad_ids.type))
    except pa.ArrowException:
        raise CatalogError("ids are strings in some rows and integers in others") from None


def _no_ads(schema: Schema, removed: dict) -> Catalog:
    integers = all(isinstance(ad_id, int) for ad_id in removed)
    return Catalog(
        schema=schema,
        ad_ids=pa.array([], pa.int64() if integers else pa.large_string()),
        sids=np.empty((0, 0), np.int32),
        rules=tuple([None] for _ in schema.attributes),
        windows=[ALWAYS],
        signatures=np.zeros((1, len(schema.attributes) + 1), np.int32),
        ad_signatures=np.empty(0, np.int32),
        paused=np.empty(0, bool),
    )
