"""Training and validation rows: JSON Lines, or the same objects in memory."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grace.catalog.values import checked_text, describe
from grace.errors import DataError, RequestError
from grace.model.feature_table import FeatureTable
from grace.model.features import FeatureSpec

if TYPE_CHECKING:
    from grace.index import Index

KEYS = {"features", "target"}
REQUEST_KEYS = {"id", "attributes", "at", "top_k"}
"""Keys of a request, which a row may be as well; training does not read them."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExampleRows:
    """Rows as read, not yet checked against a `FeatureSpec`.

    Attributes:
        source: what messages call them: a path, or "rows".
        numbers: of each row, its line (from a file) or place in the list, from 1.
        features: of each row.
        targets: the ad id of each row, None where it has none.
    """

    source: str
    numbers: list[int]
    features: list[dict[str, Any]]
    targets: list[str | int | None]

    @classmethod
    def read(cls, source: str | os.PathLike | Iterable[Mapping[str, Any]]) -> ExampleRows:
        """Read a JSON Lines file, or take rows as they are. Blank lines are skipped.

        Raises:
            DataError: if the file is missing, or a row is no object, has an unknown key or a target
                that cannot be an ad id.
        """
        in_memory = not isinstance(source, str | os.PathLike)
        rows = cls(source="rows" if in_memory else str(source), numbers=[], features=[], targets=[])
        for number, row in enumerate(source, 1) if in_memory else _read_lines(Path(source)):
            rows.numbers.append(number)
            features, target = _check_row(row, f"{rows.source}: row {number}")
            rows.features.append(features)
            rows.targets.append(target)
        if not rows.numbers:
            raise DataError(f"{rows.source}: there are no rows")
        return rows

    def fit(self, spec: FeatureSpec) -> FeatureSpec:
        """Return `spec` with its open vocabularies and statistics fitted to these rows.

        Raises:
            DataError: naming the row that does not fit the declaration.
        """
        try:
            return spec.fit(self.features)
        except RequestError:
            self._name_wrong_row(spec)
            raise

    def tabulate(self, spec: FeatureSpec, index: Index) -> FeatureTable:
        """Return the features as a table.

        Raises:
            DataError: naming the row that does not fit the declaration.
        """
        try:
            return FeatureTable.build(spec, self.features, index)
        except RequestError:
            self._name_wrong_row(spec)
            raise

    def _name_wrong_row(self, spec: FeatureSpec) -> None:
        for number, features in zip(self.numbers, self.features, strict=True):
            try:
                spec.fit([features]).check(features)
            except RequestError as error:
                raise DataError(f"{self.source}: row {number}: {error}") from None


def _read_lines(path: Path) -> Iterable[tuple[int, Any]]:
    try:
        with open(path, encoding="utf-8-sig") as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    yield number, _parse_line(line, f"{path}: row {number}")
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not UTF-8 text: {error}") from None
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}") from None


def _parse_line(line: str, where: str) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError) as error:  # also of integers of thousands of digits
        raise DataError(f"{where}: not JSON: {error}") from None


def _check_row(row: Any, where: str) -> tuple[dict[str, Any], str | int | None]:
    if not isinstance(row, Mapping) or not isinstance(row.get("features"), Mapping):
        raise DataError(f'{where}: expected an object {{"features": {{...}}, "target"?: ad id}}')
    unknown = sorted(set(row) - KEYS - REQUEST_KEYS)
    if unknown:
        raise DataError(f"{where}: unknown key {unknown[0]!r}; expected `features` and `target`")
    target = row.get("target")
    if target is not None and type(target) not in (str, int):
        raise DataError(f"{where}: target: expected a string or an integer, got {describe(target)}")
    if isinstance(target, str):
        try:
            checked_text(target)
        except ValueError as error:
            raise DataError(f"{where}: target: {error}") from None
    return dict(row["features"]), target
