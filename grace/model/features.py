"""`features.yaml`: which features a model reads, checked, fitted, and turned into tensors."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor

from grace.catalog.values import describe
from grace.errors import ConfigError, RequestError
from grace.files import read_yaml
from grace.model.feature_table import FeatureTable
from grace.model.fields import FIELD_KINDS, Field, SequenceField

if TYPE_CHECKING:
    from grace.index import Index


@dataclasses.dataclass(frozen=True, kw_only=True)
class FeatureSpec:
    """The declared fields, in the order of the model's feature tokens.

    Attributes:
        fields: the fields; names are unique.
    """

    fields: tuple[Field, ...]

    @classmethod
    def load(cls, path: str | os.PathLike) -> FeatureSpec:
        """Read a YAML file.

        Raises:
            ConfigError: if the file is missing, not YAML, or declares a field wrongly.
        """
        try:
            table = read_yaml(path)
        except OSError as error:
            raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
        except ValueError as error:
            raise ConfigError(f"{path}: not YAML: {error}") from None
        try:
            return cls.from_dict(table)
        except ConfigError as error:
            raise ConfigError(f"{path}: {error}") from None

    @classmethod
    def from_dict(cls, table: Any) -> FeatureSpec:
        """Make a specification from `{"fields": [{"name", "kind", ...}]}`.

        Raises:
            ConfigError: naming the field and what is wrong with it.
        """
        if not isinstance(table, Mapping) or set(table) != {"fields"}:
            raise ConfigError("features: expected one key, `fields`")
        if not isinstance(table["fields"], list | tuple) or not table["fields"]:
            raise ConfigError("features: `fields` must be a list of one or more {name, kind, ...}")
        fields = tuple(_make_field(i, entry) for i, entry in enumerate(table["fields"]))
        names = [field.name for field in fields]
        for name in names:
            if names.count(name) > 1:
                raise ConfigError(f"features: two fields are called {name!r}")
        return cls(fields=fields)

    def to_dict(self) -> dict[str, Any]:
        """Return what `from_dict` takes, fitted values included: what a checkpoint stores."""
        return {"fields": [field.to_dict() for field in self.fields]}

    @property
    def sequences(self) -> tuple[SequenceField, ...]:
        """The fields of kind `sequence`."""
        return tuple(field for field in self.fields if isinstance(field, SequenceField))

    def fit(self, rows: Sequence[Mapping[str, Any]]) -> FeatureSpec:
        """Fill vocabularies and statistics that the file leaves open, from training rows.

        Args:
            rows: the `features` of each row.

        Raises:
            RequestError: if a row does not fit the declaration.
        """
        for row in rows:
            self.check_names(row)
        return FeatureSpec(
            fields=tuple(field.fit(row.get(field.name) for row in rows) for field in self.fields)
        )

    def check(self, features: Mapping[str, Any]) -> None:
        """Refuse features that do not fit the declaration; raises as `parse` does."""
        self.parse(features)

    def parse(self, features: Mapping[str, Any]) -> tuple:
        """Return what each field's `parse` makes of one request's features, in their order.

        Raises:
            RequestError: whose `field` is `features` or `features.<name>...`.
        """
        self.check_names(features)
        return tuple(field.parse(features.get(field.name)) for field in self.fields)

    def encode(
        self, features: Sequence[Mapping[str, Any]], index: Index
    ) -> tuple[dict[str, Tensor], list[int]]:
        """Turn the features of B requests into the model's inputs.

        The same table and the same windows serve training, retrieval and serving. An absent field
        is a missing one. Items that the index does not know leave their sequence before it is cut
        to its newest `max_length`.

        Args:
            features: one mapping a request, field name to value.
            index: resolves the ad ids of sequences to SIDs.

        Returns:
            The tensors of `FeatureTable.batch`, and per request how many events were skipped.

        Raises:
            RequestError: as `check`.
        """
        return self.encode_parsed([self.parse(row) for row in features], index)

    def encode_parsed(
        self, parsed: Sequence[tuple], index: Index
    ) -> tuple[dict[str, Tensor], list[int]]:
        """Do what `encode` does with B requests that `parse` has read."""
        table = FeatureTable.of_parsed(self, parsed, index)
        return table.batch(range(len(parsed))), table.unknown_items.tolist()

    def check_names(self, features: Any) -> None:
        """Refuse features that are no mapping or hold a field that was not declared."""
        if not isinstance(features, Mapping):
            raise RequestError("features", f"expected an object, got {describe(features)}")
        known = {field.name for field in self.fields}
        for name in features:
            if name not in known:
                names = ", ".join(sorted(known)) or "none"
                raise RequestError(
                    f"features.{name}", f"the model reads no such field; it reads: {names}"
                )


def _make_field(position: int, entry: Any) -> Field:
    if not isinstance(entry, Mapping) or not isinstance(entry.get("name"), str):
        raise ConfigError(f"features: fields[{position}] must be {{name, kind, ...}}")
    name = entry["name"]
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_-]*", name):
        raise ConfigError(
            f"features: fields[{position}]: a name is letters, digits, - and _, got {name!r}"
        )
    options = dict(entry)
    kind = options.pop("kind", None)
    if not isinstance(kind, str) or kind not in FIELD_KINDS:
        expected = ", ".join(FIELD_KINDS)
        raise ConfigError(
            f"features: field {name!r}: `kind` must be one of {expected}, got {describe(kind)}"
        )
    try:
        field = FIELD_KINDS[kind].from_dict(options)
    except ConfigError as error:
        raise ConfigError(f"features: field {name!r}: {error}") from None
    if options:
        option = describe(next(iter(options)))
        raise ConfigError(f"features: field {name!r}: a {kind} field has no option {option}")
    return field
