"""Random catalogues as Arrow tables: many column types, some odd, and at most a few wrong rows."""

from __future__ import annotations

import itertools
import random
from datetime import UTC, datetime, timedelta

import pyarrow as pa

from grace.catalog import Catalog, RangeTable, Schema

SCHEMA = Schema.from_dict(
    {
        "attributes": [
            {"name": "age", "kind": "range"},
            {"name": "gender", "kind": "categorical", "values": ["f", "m", "5"]},
            {"name": "place", "kind": "set"},
        ]
    }
)
TEXTS = (pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string()))
NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


def ads_of(catalog: Catalog) -> list[tuple]:
    """Every ad in words: id, SID, rules, window, paused."""
    rules = [rules_of(table) for table in catalog.rules]
    ads = []
    for i, ad_id in enumerate(catalog.ad_ids.to_pylist()):
        *numbers, window = catalog.signatures[catalog.ad_signatures[i]].tolist()
        ads.append(
            (
                ad_id,
                tuple(catalog.sids[i].tolist()),
                tuple(table[number] for table, number in zip(rules, numbers, strict=True)),
                tuple(catalog.windows[window].tolist()),
                bool(catalog.paused[i]),
            )
        )
    return ads


def rules_of(table) -> list[tuple]:
    """Every rule of a table: its ends, or the sets of values that it names."""
    if isinstance(table, RangeTable):
        return list(zip(table.min.tolist(), table.max.tolist(), strict=True))
    values = table.values.to_pylist()
    sides = []
    for offsets, ids in (
        (table.include_offsets, table.include_values),
        (table.exclude_offsets, table.exclude_values),
    ):
        lists = [ids[a:b].tolist() for a, b in itertools.pairwise(offsets)]
        assert all(len(set(some)) == len(some) for some in lists)
        sides.append([frozenset(values[i] for i in some) for some in lists])
    return list(zip(*sides, strict=True))


class RandomTable:
    """Draws one table. `faults` is the chance that a value is wrong, `odd` that a type is."""

    def __init__(self, seed: int, faults: float, odd: float, removals: bool = False):
        self.rng = random.Random(seed)
        self.faults = faults
        self.odd = odd
        self.removals = removals
        self.num_rows = self.rng.choice((1, 2, 7, 30, 60))

    def table(self) -> pa.Table:
        columns = {"title": pa.array(["x"] * self.num_rows)}
        for name, make in (
            ("ad_id", self.ad_ids),
            ("sid", self.sids),
            ("rules", self.rules),
            ("start", lambda: self.times(0)),
            ("end", lambda: self.times(1)),
            ("paused", self.flags),
            *([("removed", self.flags)] if self.removals else []),
        ):
            if name in ("ad_id", "sid") or self.rng.random() < 0.9:
                columns[name] = make()
        names = self.rng.sample(sorted(columns), len(columns))
        table = pa.table({name: columns[name] for name in names})
        cut = self.rng.randint(0, self.num_rows - 1)  # offsets into the same buffers
        chunks = [table.slice(cut), table.slice(0, cut)]
        return pa.concat_tables(chunks) if self.rng.random() < 0.5 else table

    def wrong(self) -> bool:
        return self.rng.random() < self.faults

    def one_of(self, plain: tuple, odd: tuple) -> object:
        return self.rng.choice(odd if self.rng.random() < self.odd else plain)

    def ad_ids(self) -> pa.Array:
        ids = self.rng.sample(range(1, 100), self.num_rows)
        kind = self.one_of(
            (pa.int64(), pa.int32(), pa.uint8(), *TEXTS),
            (pa.uint64(), pa.float64(), pa.binary(), pa.string_view()),
        )
        if kind == pa.binary():
            return pa.array([str(i).encode() for i in ids], kind)
        if not pa.types.is_integer(kind) and not pa.types.is_floating(kind):
            ids = [f"ad é {i}" if not self.wrong() else "" for i in ids]
        elif kind == pa.uint64() and self.wrong():
            ids[-1] = 2**63
        if self.wrong():
            ids[self.rng.randrange(len(ids))] = self.rng.choice((None, ids[0]))
        return pa.array(ids, kind)

    def sids(self) -> pa.Array:
        num_levels = self.rng.choice((1, 2, 3, 32, 33 if self.wrong() else 4))
        top = self.rng.choice((2, 100))
        sids = [[self.rng.randrange(top) for _ in range(num_levels)] for _ in range(self.num_rows)]
        for i in range(self.num_rows):
            if self.wrong():
                sids[i] = self.rng.choice((None, [], sids[i] + [0], [None] * num_levels))
            elif self.wrong():
                sids[i][-1] = self.rng.choice((-1, 2**31 - 2, 2**31 - 1))
        kinds = [pa.list_(pa.int64()), pa.large_list(pa.int64())]
        if all(sid is not None and len(sid) == num_levels for sid in sids):
            kinds.append(pa.list_(pa.int64(), num_levels))
        kind = self.one_of(tuple(kinds), (pa.list_(pa.float64()), pa.list_(pa.string()), None))
        if kind is None:
            return pa.array([None if sid is None else str(sid) for sid in sids])
        if kind.value_type == pa.string():
            sids = [
                sid and [None if token is None else str(token) for token in sid] for sid in sids
            ]
        return pa.array(sids, kind)

    def rules(self) -> pa.Array:
        if self.rng.random() < 0.05:
            return pa.nulls(self.num_rows)
        fields = {}
        for name, make in (("age", self.ranges), ("gender", self.values), ("place", self.values)):
            if self.rng.random() < 0.9:
                fields[name] = make(name)
        if self.rng.random() < 0.2:
            fields["_"] = pa.nulls(self.num_rows, self.rng.choice((pa.null(), pa.int8())))
        if self.wrong():
            fields["planet"] = pa.array([{"min": 1}] * self.num_rows)
        return self.struct(fields or {"_": pa.nulls(self.num_rows)})

    def struct(self, fields: dict[str, pa.Array]) -> pa.Array:
        """A struct, some of it null with values below."""
        null = [self.rng.random() < 0.2 for _ in range(self.num_rows)]
        return pa.StructArray.from_arrays(list(fields.values()), list(fields), mask=pa.array(null))

    def ranges(self, name: str) -> pa.Array:
        kind = self.one_of(
            (pa.int64(), pa.float64(), pa.float32(), pa.int16(), pa.null()), (pa.string(),)
        )
        ends = [sorted(self.rng.randrange(-3, 4) for _ in range(2)) for _ in range(self.num_rows)]
        columns = {}
        for side, key in enumerate(("min", "max")):
            column = [None if self.rng.random() < 0.3 else pair[side] for pair in ends]
            for i in range(self.num_rows):
                if self.wrong() and kind == pa.float64():
                    column[i] = self.rng.choice((float("nan"), float("inf"), -float("inf")))
                elif self.wrong() and kind == pa.int64():
                    column[i] = self.rng.choice((2**53, 2**53 + 1, -(2**63)))
                elif column[i] == 0 and kind in (pa.float64(), pa.float32()):
                    column[i] = self.rng.choice((0.0, -0.0))
            if kind == pa.string():
                column = [None if value is None else str(value) for value in column]
            if kind == pa.null():
                column = [None] * self.num_rows
            columns[key] = pa.array(column, kind)
        if self.wrong():
            columns["include"] = pa.array([["x"]] * self.num_rows)
        return self.struct(columns)

    def values(self, name: str) -> pa.Array:
        pool = ["f", "m", "5"] if name == "gender" else ["", "US", "日本", "5", "true", "x" * 40]
        columns = {}
        for key in ("include", "exclude"):
            if self.rng.random() < 0.2:
                continue
            lists = []
            for _ in range(self.num_rows):
                some = self.rng.choices(pool, k=self.rng.choice((1, 2, 2, 5)))
                if self.wrong():
                    some = self.rng.choice(([], [None], ["stranger"]))
                elif self.rng.random() < 0.2:
                    some = None if key == "include" else self.rng.choice((None, []))
                lists.append(some)
            text = self.one_of(TEXTS, (pa.string_view(),))
            kind = self.one_of(
                (pa.list_(text), pa.large_list(text)),
                (pa.list_(pa.int64()), pa.list_(pa.bool_()), pa.null(), pa.list_(pa.null())),
            )
            inner = getattr(kind, "value_type", None)
            if inner == pa.int64():
                lists = [some and [5 for _ in some] for some in lists]
            elif inner == pa.bool_():
                lists = [some and [self.rng.random() < 0.5 for _ in some] for some in lists]
            elif inner == pa.null():
                lists = [[] if some and key == "exclude" else None for some in lists]
            elif inner is None:
                lists = [None] * self.num_rows
            columns[key] = pa.array(lists, kind)
            if kind == pa.list_(pa.string()) and self.rng.random() < self.odd:
                columns[key] = self.covering(columns[key])
        return self.struct(columns or {"_": pa.nulls(self.num_rows)})

    def covering(self, lists: pa.ListArray) -> pa.Array:
        """Make some lists null that still cover values, as Arrow allows."""
        if lists.null_count:
            return lists
        null = pa.array([self.rng.random() < 0.3 for _ in lists])
        return pa.ListArray.from_arrays(lists.offsets, lists.values, mask=null)

    def times(self, side: int) -> pa.Array:
        base = NOON + timedelta(days=side)
        moments = [
            None if self.rng.random() < 0.4 else base + timedelta(seconds=self.rng.randrange(3))
            for _ in range(self.num_rows)
        ]
        if self.wrong():
            moments[-1] = NOON + timedelta(days=1 - 2 * side)
        stamps = [pa.timestamp(unit, zone) for unit in ("s", "us", "ns") for zone in ("UTC", None)]
        kind = self.one_of(
            (*stamps, pa.timestamp("us", "America/New_York"), pa.date32(), pa.string(), pa.null()),
            (pa.int64(),),
        )
        if kind == pa.null():
            return pa.nulls(self.num_rows)
        if kind == pa.date32():
            return pa.array([m and m.date() for m in moments], kind)
        if kind == pa.string():
            texts = [m and m.isoformat()[: self.rng.choice((19, 25))] for m in moments]
            if self.wrong():
                texts[0] = "noon"
            return pa.array(texts, self.one_of(TEXTS, (pa.string_view(),)))
        if kind == pa.int64():
            return pa.array([m and 5 for m in moments], kind)
        if kind.unit == "ns":
            extra = self.rng.randrange(1000)
            whole = [m and int(m.timestamp()) * 10**9 + extra for m in moments]
            return pa.array(whole, pa.int64()).cast(kind)
        return pa.array(moments, pa.timestamp(kind.unit, "UTC")).cast(kind)

    def flags(self) -> pa.Array:
        kind = self.one_of((pa.bool_(), pa.bool_(), pa.null()), (pa.int8(),))
        if kind == pa.null():
            return pa.nulls(self.num_rows)
        flags = [self.rng.choice((True, False, False, None)) for _ in range(self.num_rows)]
        return pa.array(flags, pa.bool_()).cast(kind)
