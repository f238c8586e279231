"""How single values are written: attribute values, ad ids, numbers and instants."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta

MAX_EXACT_FLOAT = 2**53
INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)


def attribute_value(value: object) -> str:
    """Return the string that stands for a categorical or set value.

    Integers and booleans stand for their JSON spelling, so `5` and `"5"` are one value.

    Raises:
        ValueError: for anything else; the message says what was expected and what came.
    """
    if isinstance(value, str):
        return checked_text(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    raise ValueError(f"expected a string or an integer, got {describe(value)}")


def range_value(value: object) -> float:
    """Return a finite number as a float64 that equals it exactly.

    Raises:
        ValueError: for anything that is not a finite number, or an integer past 2^53.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError(f"expected a number, got {describe(value)}")
    if isinstance(value, int) and abs(value) > MAX_EXACT_FLOAT:
        raise ValueError(f"expected a number of at most 2^53 in size, got {value}")
    if not math.isfinite(value):
        raise ValueError(f"expected a finite number, got {value}")
    return float(value)


def instant(value: object, *, assume_utc: bool) -> int:
    """Return microseconds since 1970-01-01 UTC of an ISO 8601 text or a datetime.

    Args:
        value: what the file or the request holds.
        assume_utc: whether a time without a zone is read as UTC (catalogues) or refused (requests).

    Raises:
        ValueError: if it is no time, or has no zone where one is needed.
    """
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value)
        except ValueError:
            raise ValueError(
                f"expected an ISO 8601 time such as 2026-01-31T00:00:00Z, got {value!r}"
            ) from None
    if not isinstance(value, datetime):
        raise ValueError(
            f"expected an ISO 8601 time such as 2026-01-31T00:00:00Z, got {describe(value)}"
        )
    if value.tzinfo is None:
        if not assume_utc:
            raise ValueError(f"expected a time with its zone (Z or +hh:mm), got {value}")
        value = value.replace(tzinfo=UTC)
    return (value - EPOCH) // MICROSECOND


def checked_text(value: str) -> str:
    """Return the text if UTF-8 can hold it; ids and values are ordered and hashed as UTF-8."""
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ValueError(f"expected text that UTF-8 can hold, got {value!r}") from None
    return value


def describe(value: object) -> str:
    """Name a wrong value for an error message, shortly."""
    if value is None:
        return "null"
    try:
        text = repr(value)
    except (RecursionError, ValueError):  # nested too deeply, or an integer of thousands of digits
        text = f"a {type(value).__name__}"
    return printable(text if len(text) <= 60 else text[:57] + "...")


def printable(text: str) -> str:
    """Return the text with what UTF-8 cannot hold written as an escape."""
    return text.encode("utf-8", "backslashreplace").decode()
