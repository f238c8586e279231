"""What SIDs are made from, read out of a catalogue and out of users' histories."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from grace.catalog import iter_rows
from grace.catalog.batches import BATCH_ROWS
from grace.catalog.values import INT64_MAX, INT64_MIN, checked_text, describe, printable
from grace.errors import CatalogError, DataError
from grace.progress import progress

DEFAULT_TEXT = ("title", "description")
"""Columns read where no source is named; a catalogue need not have both."""

_NUMBERS = (int, float, np.integer, np.floating)


@dataclass(frozen=True, eq=False)
class Items:
    """N items in the catalogue's order.

    Attributes:
        ad_ids: all strings or all integers, distinct.
        texts: the text columns joined, empty where there is none; None if none was asked for.
        attributes: the attribute columns joined likewise.
        embeddings: `[N, D]` float32, zero where there is none; None if not asked for.
    """

    ad_ids: list[str] | list[int]
    texts: list[str] | None
    attributes: list[str] | None
    embeddings: np.ndarray | None


def read_items(
    catalog: object,
    text: Sequence[str] | None = None,
    attributes: Sequence[str] = (),
    embedding_column: str | None = None,
    replace_sid: bool = False,
) -> Items:
    """Read ids, texts and embeddings; other columns are not kept.

    Args:
        catalog: what `iter_rows` takes.
        text: columns of text, lists of texts or numbers; None for `DEFAULT_TEXT`.
        attributes: columns of labels, of the same kinds.
        embedding_column: column of lists of floats, all of one length; null is none.
        replace_sid: accept rows that have a SID already.

    Raises:
        CatalogError: naming the row and the field.
    """
    columns = DEFAULT_TEXT if text is None else text
    ad_ids, texts, labels, embeddings = [], [], [], []
    rows = {}
    seen = set()
    vectors = [embedding_column] if embedding_column else []
    wanted = ("ad_id", "sid", *columns, *attributes, *vectors)
    with progress("reading the catalogue") as advance:
        for number, row in iter_rows(catalog, wanted):
            if number % BATCH_ROWS == 0:
                advance(BATCH_ROWS)
            ad_id = _ad_id(number, row.get("ad_id"), ad_ids)
            if rows.setdefault(ad_id, number) != number:
                raise CatalogError(
                    f"{ad_id!r} is in row {rows[ad_id]} already; ids must be unique",
                    number,
                    "ad_id",
                )
            ad_ids.append(ad_id)
            if row.get("sid") is not None and not replace_sid:
                raise CatalogError(
                    "is there already; pass --replace-sid to make new SIDs", number, "sid"
                )
            seen.update(column for column in wanted if column in row)
            if columns:
                texts.append(_joined(number, row, columns))
            if attributes:
                labels.append(_joined(number, row, attributes))
            if embedding_column:
                embeddings.append(_embedding(number, row, embedding_column))
    if not ad_ids:
        raise CatalogError("the catalogue has no rows; SIDs need at least one item")
    if text is None and seen.isdisjoint(DEFAULT_TEXT):
        raise CatalogError(
            f"no row has a column {' or '.join(DEFAULT_TEXT)}; name what to make SIDs from: "
            "--text, --attributes, --embedding-column or --behaviour"
        )
    missing = [name for name in (*(text or ()), *attributes, *vectors) if name not in seen]
    if missing:
        raise CatalogError("no row has this column", field=missing[0])
    return Items(
        ad_ids,
        texts if columns else None,
        labels if attributes else None,
        _stack(embeddings, list(rows.values()), embedding_column) if embedding_column else None,
    )


def read_embeddings(path: str | os.PathLike, num_items: int) -> np.ndarray:
    """Read vectors made elsewhere: `.npy`, `[N, D]` of floats, rows by ascending ad id.

    Returns:
        `[N, D]` float32; a zero row is an item without a vector.

    Raises:
        DataError: if the file is missing, no such array, of another number of rows, or not finite.
    """
    try:
        vectors = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise DataError(f"{path}: cannot be read as a .npy array: {error}") from None
    kind = vectors.dtype.kind if isinstance(vectors, np.ndarray) else "?"
    if kind != "f" or vectors.ndim != 2 or vectors.shape[0] != num_items or not vectors.shape[1]:
        raise DataError(
            f"{path}: expected floats [{num_items}, D], a row per item of the catalogue, "
            f"got {vectors.dtype} {list(vectors.shape)}"
        )
    with np.errstate(over="ignore"):  # what float32 cannot hold becomes inf and is refused
        vectors = vectors.astype(np.float32)
    bad = np.argwhere(~np.isfinite(vectors))
    if len(bad):
        raise DataError(f"{path}: row {bad[0, 0]}, column {bad[0, 1]} is not a finite float32")
    return vectors


class Histories:
    """Users' histories as item positions, read as a stream each time they are iterated.

    Attributes:
        unknown: entries that are not in the catalogue, skipped; set when an iteration ends.
    """

    def __init__(self, source: object, positions: dict[str, int] | dict[int, int]):
        """Take rows `{"items": [ad_id, ...]}`, oldest first, from what `iter_rows` takes."""
        self.source = source
        self.positions = positions
        self.unknown = 0

    def __iter__(self) -> Iterator[list[int]]:
        """Yield one list of positions per user.

        Raises:
            DataError: if a row has no list of ad ids, or no id at all is in the catalogue.
        """
        known = unknown = 0
        example = None
        for number, row in iter_rows(self.source, ("items",)):
            items = row.get("items")
            if not isinstance(items, list):
                raise DataError(
                    f"behaviour row {number}, items: expected a list of ad ids, "
                    f"got {describe(items)}"
                )
            history = []
            for item in items:
                if type(item) not in (str, int):
                    raise DataError(
                        f"behaviour row {number}, items: expected ad ids, got {describe(item)}"
                    )
                position = self.positions.get(item)
                if position is None:
                    unknown += 1
                    example = item if example is None else example
                else:
                    history.append(position)
            known += len(history)
            yield history
        if not known:
            reason = "there are none" if example is None else f"the first is {describe(example)}"
            raise DataError(f"behaviour: no entry is an ad id of the catalogue ({reason})")
        self.unknown = unknown


def _ad_id(number: int, value: object, before: list) -> str | int:
    if isinstance(value, np.integer):
        value = int(value)
    if type(value) not in (str, int):
        raise CatalogError(
            f"expected a string or an integer, got {describe(value)}", number, "ad_id"
        )
    if before and type(value) is not type(before[0]):
        raise CatalogError(
            f"expected {'a string' if type(before[0]) is str else 'an integer'} as in the rows "
            f"before, got {describe(value)}",
            number,
            "ad_id",
        )
    if type(value) is int and not INT64_MIN <= value <= INT64_MAX:
        raise CatalogError(f"expected a 64-bit integer, got {describe(value)}", number, "ad_id")
    if value == "":
        raise CatalogError("expected an id, got an empty string", number, "ad_id")
    if type(value) is str:
        try:
            checked_text(value)
        except ValueError as error:
            raise CatalogError(str(error), number, "ad_id") from None
    return value


def _joined(number: int, row: dict, columns: Sequence[str]) -> str:
    return " ".join(filter(None, (_text(number, row, column) for column in columns)))


def _text(number: int, row: dict, column: str) -> str:
    value = row.get(column)
    if value is None:
        return ""
    parts = value if isinstance(value, list) else [value]
    for part in parts:
        if not isinstance(part, (str, int, float)):
            raise CatalogError(
                f"expected text or a list of texts, got {describe(value)}", number, column
            )
    try:
        return checked_text(" ".join(map(str, parts)))
    except ValueError as error:
        raise CatalogError(printable(str(error)), number, column) from None


def _embedding(number: int, row: dict, column: str) -> np.ndarray | None:
    value = row.get(column)
    if value is None:
        return None
    if not isinstance(value, (list, tuple, np.ndarray)) or len(value) == 0:
        raise CatalogError(f"expected a list of numbers, got {describe(value)}", number, column)
    kinds = {value.dtype.type} if isinstance(value, np.ndarray) else set(map(type, value))
    if kinds == {np.object_}:
        kinds = set(map(type, value))
    if not all(issubclass(kind, _NUMBERS) and kind is not bool for kind in kinds):
        raise CatalogError(f"expected a list of numbers, got {describe(value)}", number, column)
    try:
        with np.errstate(over="ignore"):  # what float32 cannot hold becomes inf and is refused
            vector = np.array(value, np.float32)
    except OverflowError:  # an integer that even a float64 cannot hold
        position = max(range(len(value)), key=lambda position: abs(value[position]))
        raise CatalogError(
            f"expected a finite float32, got {describe(value[position])}",
            number,
            f"{column}[{position}]",
        ) from None
    except (TypeError, ValueError):
        raise CatalogError(
            f"expected a list of numbers, got {describe(value)}", number, column
        ) from None
    if vector.ndim != 1:
        raise CatalogError(f"expected a list of numbers, got {describe(value)}", number, column)
    bad = np.flatnonzero(~np.isfinite(vector))
    if len(bad):
        raise CatalogError(
            f"expected a finite float32, got {value[bad[0]]}", number, f"{column}[{bad[0]}]"
        )
    return vector


def _stack(vectors: list[np.ndarray | None], numbers: list[int], column: str) -> np.ndarray:
    first = next((vector for vector in vectors if vector is not None), None)
    if first is None:
        raise CatalogError("no row has an embedding in this column", field=column)
    stacked = np.zeros((len(vectors), len(first)), np.float32)
    for position, vector in enumerate(vectors):
        if vector is None:
            continue
        if len(vector) != len(first):
            raise CatalogError(
                f"expected {len(first)} numbers as in the rows before, got {len(vector)}",
                numbers[position],
                column,
            )
        stacked[position] = vector
    return stacked
