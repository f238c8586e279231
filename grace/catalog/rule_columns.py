"""One attribute's rules as columns of a batch: checked and numbered without a loop over rows."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from grace.catalog.dictionary import Lists, RangeDictionary, ValueDictionary
from grace.catalog.values import MAX_EXACT_FLOAT


class Undecided(Exception):
    """Rows must be looked at one by one: a type is not plain, or some row is wrong."""


def range_column(column: pa.Array | None, num_rows: int, rules: RangeDictionary) -> np.ndarray:
    """Return int32 [n], the numbers of rules `{min, max}`.

    Args:
        column: structs, or None where no row has a rule.
        num_rows: n.
        rules: takes them.

    Raises:
        Undecided: if a type is not plain or a rule is wrong.
    """
    ends = fields_of(column, ("min", "max"))
    if not ends:
        return np.zeros(num_rows, np.int32)
    low = _numbers(ends.get("min"), num_rows, -np.inf)
    high = _numbers(ends.get("max"), num_rows, np.inf)
    if (low > high).any():
        raise Undecided
    return rules.add(low, high)


def value_column(column: pa.Array | None, num_rows: int, rules: ValueDictionary) -> np.ndarray:
    """Return int32 [n], the numbers of rules `{include, exclude}`; see `range_column`."""
    sides = fields_of(column, ("include", "exclude"))
    if not sides:
        return np.zeros(num_rows, np.int32)
    include = _lists(sides.get("include"), num_rows, rules, may_be_empty=False)
    exclude = _lists(sides.get("exclude"), num_rows, rules, may_be_empty=True)
    return rules.add(include, exclude)


def fields_of(column: pa.Array | None, keys: tuple[str, ...] | None = None) -> dict[str, pa.Array]:
    """Return a struct's fields, null where it is null; of given keys, if nothing else has a value.

    Raises:
        Undecided: if it is no struct, names a field twice, or gives another key a value.
    """
    if is_absent(column):
        return {}
    if not types.is_struct(column.type):
        raise Undecided
    names = [field.name for field in column.type]
    fields = dict(zip(names, column.flatten(), strict=True))
    if len(fields) < len(names):
        raise Undecided
    if keys is None:
        return fields
    if not all(is_empty(field) for name, field in fields.items() if name not in keys):
        raise Undecided
    return {key: fields[key] for key in keys if not is_absent(fields.get(key))}


def is_absent(column: pa.Array | None) -> bool:
    """Say whether there is no column, or one whose type has nothing but nulls."""
    return column is None or types.is_null(column.type)


def is_empty(column: pa.Array) -> bool:
    """Say whether every row is null."""
    return column.null_count == len(column)


def is_text(kind: pa.DataType) -> bool:
    """Say whether a type is text, by row."""
    return types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind)


def plain_texts(column: pa.Array) -> pa.Array:
    """Return a text column, or one of a dictionary of texts, as large_string.

    Raises:
        Undecided: if it is none.
    """
    if types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if not is_text(column.type):
        raise Undecided
    return column.cast(pa.large_string())


def _numbers(column: pa.Array | None, num_rows: int, default: float) -> np.ndarray:
    """Return float64 [n] that equal the column's numbers, `default` for nulls."""
    if column is None:
        return np.full(num_rows, default)
    if types.is_integer(column.type):
        numbers = column.cast(pa.int64()).fill_null(0).to_numpy()
        if ((numbers < -MAX_EXACT_FLOAT) | (numbers > MAX_EXACT_FLOAT)).any():
            raise Undecided
        numbers = numbers.astype(np.float64)
    elif types.is_floating(column.type):
        numbers = column.cast(pa.float64()).fill_null(0.0).to_numpy()
        if not np.isfinite(numbers).all():
            raise Undecided
    else:
        raise Undecided
    return np.where(column.is_valid().to_numpy(zero_copy_only=False), numbers, default)


def _lists(
    column: pa.Array | None, num_rows: int, rules: ValueDictionary, *, may_be_empty: bool
) -> Lists:
    """Return the ids of listed values; nulls name nothing."""
    if column is None:
        return Lists.empty(num_rows)
    if not (types.is_list(column.type) or types.is_large_list(column.type)):
        raise Undecided
    is_given = column.is_valid().to_numpy(zero_copy_only=False)
    offsets = column.offsets.to_numpy().astype(np.int64)
    if (np.diff(offsets)[~is_given] > 0).any():
        # Arrow lets a null list cover values, which mean nothing; taken anew, it covers none.
        column = column.take(pa.array(np.arange(num_rows)))
        offsets = column.offsets.to_numpy().astype(np.int64)
    if not may_be_empty and (np.diff(offsets)[is_given] == 0).any():
        raise Undecided
    values = column.values[offsets[0] : offsets[-1]]
    if values.null_count:
        raise Undecided
    return Lists(offsets - offsets[0], _value_ids(values, rules))


def _value_ids(values: pa.Array, rules: ValueDictionary) -> np.ndarray:
    if not len(values):
        return np.empty(0, np.int32)
    if not types.is_dictionary(values.type):
        return _text_ids(plain_texts(values), rules)
    indices = values.indices.to_numpy()
    is_used = np.zeros(len(values.dictionary), bool)
    is_used[indices] = True
    ids = np.zeros(len(is_used), np.int32)
    used = values.dictionary.filter(pa.array(is_used))
    if used.null_count:
        raise Undecided
    ids[is_used] = _text_ids(plain_texts(used), rules)
    return ids[indices]


def _text_ids(texts: pa.Array, rules: ValueDictionary) -> np.ndarray:
    allowed = rules.attribute.values
    if allowed is not None and not pc.all(pc.is_in(texts, pa.array(allowed, texts.type))).as_py():
        raise Undecided
    return rules.add_texts(texts)
