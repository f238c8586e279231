"""Every error Grace raises on purpose. Wrong Python arguments are plain ValueError or TypeError."""

from __future__ import annotations


class GraceError(Exception):
    """Base of all errors below; the command line prints its message and exits with 2."""


class SchemaError(GraceError):
    """The targeting schema (YAML) is wrong."""


class CatalogError(GraceError):
    """A catalogue file or row is wrong.

    Attributes:
        row: 1-based row (Parquet, tables) or line (JSON Lines) number, or None for the whole file.
        field: dotted name of the field, such as `rules.age.min`, or None.
    """

    def __init__(self, message: str, row: int | None = None, field: str | None = None):
        where = [f"row {row}"] if row is not None else []
        where += [field] if field else []
        super().__init__(": ".join([", ".join(where), message] if where else [message]))
        self.row = row
        self.field = field


class SidError(GraceError):
    """Semantic IDs cannot be made from these items."""


class IndexFormatError(GraceError):
    """An index directory is torn, foreign, damaged or of another format version."""


class ConfigError(GraceError):
    """A configuration file, plan or option does not fit."""


class ModelError(GraceError):
    """A checkpoint or a generator's output is wrong."""


class TrainError(GraceError):
    """Training cannot start or go on."""


class DataError(GraceError):
    """A data file other than the catalogue is missing or wrong."""


class RequestError(GraceError):
    """One request is wrong; it fails alone.

    Attributes:
        field: dotted name of the request's field.
        message: what was expected and what came.
    """

    def __init__(self, field: str, message: str):
        # Both may quote what a client sent; a result line must be able to hold them.
        self.field = field.encode("utf-8", "backslashreplace").decode()
        self.message = message.encode("utf-8", "backslashreplace").decode()
        super().__init__(f"{self.field}: {self.message}")
