"""A catalogue read into columns: what the index is built from, checked row by row."""

from __future__ import annotations

from array import array

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from grace.catalog.rows import BATCH_ROWS, iter_rows
from grace.catalog.rules import Rule, RuleFault, parse_rule
from grace.catalog.schema import Attribute, Schema
from grace.catalog.tables import ALWAYS, Catalog, RangeTable, ValueTable
from grace.catalog.values import INT64_MAX, INT64_MIN, checked_text, describe, instant
from grace.errors import CatalogError
from grace.progress import progress

COLUMNS = ("ad_id", "sid", "rules", "start", "end", "paused")
MAX_TOKEN = 2**31 - 2  # so that the largest token + 1 is an int32 too
MAX_LEVELS = 32

Window = tuple[int, int]


def read_catalog(source: object, schema: Schema, workers: int = 1) -> Catalog:
    """Read and check a catalogue whose ads have SIDs; memory holds the result, never the file.

    Args:
        source: what `iter_rows` takes.
        schema: the attributes that rules may name.

    Raises:
        CatalogError: naming the row, the field, what was expected and what came.
    """
    columns = _Columns(schema)
    with progress("reading the catalogue") as advance:
        for number, row in iter_rows(source, COLUMNS):
            columns.add(number, row)
            if number % BATCH_ROWS == 0:
                advance(BATCH_ROWS)
    return columns.finish()


class _Columns:
    """Grows a catalogue row by row. Invariant: every column has as many entries as rows added."""

    def __init__(self, schema: Schema):
        self.schema = schema
        self.num_levels: int | None = None
        self.id_type: type | None = None
        self.pending_ids: list[str | int] = []
        self.id_chunks: list[pa.Array] = []
        self.row_numbers = array("q")
        self.tokens = array("i")
        self.rules = tuple(_RuleDictionary(attribute) for attribute in schema.attributes)
        self.windows: dict[Window, int] = {ALWAYS: 0}
        self.signatures: dict[tuple[int, ...], int] = {}
        self.ad_signatures = array("i")
        self.paused = bytearray()

    def add(self, number: int, row: dict) -> None:
        """Check one row and append it."""
        self._add_id(number, row.get("ad_id"))
        self._add_sid(number, row.get("sid"))
        raw = row.get("rules")
        if raw is None:
            raw = {}
        if not isinstance(raw, dict):
            raise CatalogError(f"expected an object, got {describe(raw)}", number, "rules")
        if not raw.keys() <= set(self.schema.names):
            self._refuse_unknown_attribute(number, raw)
        rule_ids = tuple(rules.intern(number, raw.get(rules.name)) for rules in self.rules)
        window = self._window(number, row.get("start"), row.get("end"))
        signature = (*rule_ids, self.windows.setdefault(window, len(self.windows)))
        self.ad_signatures.append(self.signatures.setdefault(signature, len(self.signatures)))
        paused = row.get("paused")
        if paused is not None and not isinstance(paused, (bool, np.bool_)):
            raise CatalogError(f"expected true or false, got {describe(paused)}", number, "paused")
        self.paused.append(bool(paused))
        self.row_numbers.append(number)

    def finish(self) -> Catalog:
        """Return the columns, after checking what only the whole catalogue shows."""
        if not self.row_numbers:
            raise CatalogError("the catalogue has no rows; an index needs at least one ad")
        self._flush_ids()
        ad_ids = pa.concat_arrays(self.id_chunks)
        self._refuse_duplicates(ad_ids)
        return Catalog(
            schema=self.schema,
            ad_ids=ad_ids,
            sids=np.frombuffer(self.tokens, np.int32).reshape(-1, self.num_levels),
            rules=tuple(map(_table, self.rules)),
            windows=np.array(list(self.windows), np.int64),
            signatures=np.array(list(self.signatures), np.int32).reshape(
                len(self.signatures), len(self.rules) + 1
            ),
            ad_signatures=np.frombuffer(self.ad_signatures, np.int32),
            paused=np.frombuffer(self.paused, np.bool_),
        )

    def _add_id(self, number: int, ad_id: object) -> None:
        if isinstance(ad_id, np.integer):
            ad_id = int(ad_id)
        kind = type(ad_id)
        if kind not in (str, int):
            raise CatalogError(
                f"expected a string or an integer, got {describe(ad_id)}", number, "ad_id"
            )
        if self.id_type is None:
            self.id_type = kind
        if kind is not self.id_type:
            raise CatalogError(
                f"expected {_NAMES[self.id_type]} as in the rows before, got {describe(ad_id)}",
                number,
                "ad_id",
            )
        if kind is int and not INT64_MIN <= ad_id <= INT64_MAX:
            raise CatalogError(f"expected a 64-bit integer, got {ad_id}", number, "ad_id")
        if kind is str:
            if not ad_id:
                raise CatalogError("expected an id, got an empty string", number, "ad_id")
            try:
                checked_text(ad_id)
            except ValueError as error:
                raise CatalogError(str(error), number, "ad_id") from None
        self.pending_ids.append(ad_id)
        if len(self.pending_ids) == BATCH_ROWS:
            self._flush_ids()

    def _flush_ids(self) -> None:
        arrow_type = pa.int64() if self.id_type is int else pa.large_string()
        self.id_chunks.append(pa.array(self.pending_ids, arrow_type))
        self.pending_ids = []

    def _add_sid(self, number: int, sid: object) -> None:
        if sid is None:
            raise CatalogError("is missing; make SIDs first with `grace sid fit`", number, "sid")
        if isinstance(sid, np.ndarray):
            sid = sid.tolist()
        if not isinstance(sid, (list, tuple)) or not 1 <= len(sid) <= MAX_LEVELS:
            raise CatalogError(
                f"expected a list of 1 to {MAX_LEVELS} tokens, got {describe(sid)}", number, "sid"
            )
        if self.num_levels is None:
            self.num_levels = len(sid)
        if len(sid) != self.num_levels:
            raise CatalogError(
                f"expected {self.num_levels} tokens as in the rows before, got {len(sid)}",
                number,
                "sid",
            )
        for level, token in enumerate(sid):
            whole = isinstance(token, (int, np.integer)) and not isinstance(token, bool)
            if not whole or not 0 <= token <= MAX_TOKEN:
                raise CatalogError(
                    f"expected an integer from 0 to {MAX_TOKEN}, got {describe(token)}",
                    number,
                    f"sid[{level}]",
                )
        self.tokens.extend(sid)

    def _window(self, number: int, start: object, end: object) -> Window:
        if start is None and end is None:
            return ALWAYS
        ends = list(ALWAYS)
        for i, (field, value) in enumerate((("start", start), ("end", end))):
            if value is not None:
                try:
                    ends[i] = instant(value, assume_utc=True)
                except ValueError as error:
                    raise CatalogError(str(error), number, field) from None
        if ends[0] > ends[1]:
            raise CatalogError(f"is after end ({start} > {end})", number, "start")
        return ends[0], ends[1]

    def _refuse_unknown_attribute(self, number: int, raw: dict) -> None:
        for name, rule in raw.items():
            if name not in self.schema.names and rule is not None:
                known = ", ".join(self.schema.names) or "none"
                raise CatalogError(
                    f"is not in the schema, which has: {known}", number, f"rules.{name}"
                )

    def _refuse_duplicates(self, ad_ids: pa.Array) -> None:
        order = pc.sort_indices(ad_ids)
        ordered = ad_ids.take(order)
        same = pc.equal(ordered[1:], ordered[:-1]).to_numpy(zero_copy_only=False)
        if same.any():
            position = int(np.argmax(same))
            rows = sorted(self.row_numbers[order[position + i].as_py()] for i in (0, 1))
            raise CatalogError(
                f"{ordered[position].as_py()!r} is in row {rows[0]} already; ids must be unique",
                rows[1],
                "ad_id",
            )


class _RuleDictionary:
    """The distinct rules of one attribute, in order of first appearance."""

    def __init__(self, attribute: Attribute):
        self.attribute = attribute
        self.name = attribute.name
        self.rules: list[Rule | None] = [None]
        self.ids: dict[Rule | None, int] = {None: 0}
        # Raw rules repeat; `repr` tells 1, True and "1" apart, which hashing would not.
        self.seen: dict[str, int] = {}

    def intern(self, number: int, raw: object) -> int:
        if raw is None:
            return 0
        key = repr(raw)
        rule_id = self.seen.get(key)
        if rule_id is None:
            try:
                rule = parse_rule(self.attribute, raw)
            except RuleFault as fault:
                field = ".".join(part for part in ("rules", self.name, fault.part) if part)
                raise CatalogError(str(fault), number, field) from None
            rule_id = self.ids.setdefault(rule, len(self.rules))
            if rule_id == len(self.rules):
                self.rules.append(rule)
            self.seen[key] = rule_id
        return rule_id


_NAMES = {str: "a string", int: "an integer"}


def _table(rules: _RuleDictionary) -> RangeTable | ValueTable:
    if rules.attribute.kind == "range":
        ends = [(-np.inf, np.inf) if rule is None else (rule.min, rule.max) for rule in rules.rules]
        return RangeTable(*np.array(ends).T.copy())
    pairs = [((), ()) if rule is None else (rule.include, rule.exclude) for rule in rules.rules]
    ids: dict[str, int] = {}
    columns = []
    for side in (0, 1):
        columns.append(np.cumsum([0, *(len(pair[side]) for pair in pairs)], dtype=np.int64))
        flat = [ids.setdefault(value, len(ids)) for pair in pairs for value in pair[side]]
        columns.append(np.array(flat, np.int32))
    return ValueTable(pa.array(list(ids), pa.large_string()), *columns)
