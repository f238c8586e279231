"""Brute force for the k-way matchers, written from their definition: it imports nothing from Grace.

A row is a set of symbols instead of bits: a symbol for each value that a categorical rule names,
for each elementary interval of a range, for `other` and `unknown` of every attribute, and for each
bit of a Bloom filter. How full a row is counts symbols, so it is what Grace's bits count.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence

from oracle import Prefix, has_rule, id_order, prefixes, spell

MOST = {"bitmask+bloom": (1,), "static-kway": (64, 64, 32, 8), "dynamic-kway": (32,)}
FILL = {"dynamic-kway": 0.25}


class KwayMatcher:
    """Per prefix, the partitions of what is below it.

    Args:
        ads: catalogue rows.
        schema: attributes in order.
        bloom_bits: value -> positions of its bits in a filter.
        num_bits: bits of a filter.
        matching: which of the paper's three kinds.
    """

    def __init__(
        self,
        ads: Sequence[dict],
        schema: Sequence[dict],
        bloom_bits: Callable[[str], Iterable[int]],
        num_bits: int,
        matching: str,
    ):
        self._schema, self._bloom_bits = schema, bloom_bits
        self._values, self._cuts = {}, {}
        for a in schema:
            rules = [r for ad in ads if (r := (ad.get("rules") or {}).get(a["name"])) is not None]
            sides = [rule.get(side) or () for rule in rules for side in ("include", "exclude")]
            self._values[a["name"]] = {spell(value) for side in sides for value in side}
            low = [float(r["min"]) for r in rules if r.get("min") is not None]
            high = [float(r["max"]) for r in rules if r.get("max") is not None]
            cuts = {*low, *(math.nextafter(x, math.inf) for x in high)}
            self._cuts[a["name"]] = sorted(cuts)
        self._total = sum(self._size(a, num_bits) for a in schema)
        self._most, self._fill = MOST[matching], FILL.get(matching)
        in_order = sorted(ads, key=lambda ad: (tuple(ad["sid"]), id_order(ad["ad_id"])))
        of_sid: dict[Prefix, list[frozenset]] = {}
        for ad in in_order:
            of_sid.setdefault(tuple(ad["sid"]), []).append(self._symbols(ad))
        units: dict[Prefix, list[frozenset]] = {}
        for sid, rows in of_sid.items():
            for prefix in prefixes(sid)[:-1]:
                units.setdefault(prefix, []).append(frozenset().union(*rows))
            units[sid] = rows
        self.partitions = {prefix: self._split(prefix, rows) for prefix, rows in units.items()}

    def _size(self, attribute: dict, num_bits: int) -> int:
        if attribute["kind"] == "categorical":
            return len(self._values[attribute["name"]]) + 2
        if attribute["kind"] == "range":
            return len(self._cuts[attribute["name"]]) + 1 + 2
        return 2 + num_bits

    def _symbols(self, ad: dict) -> frozenset:
        return frozenset(
            (a["name"], symbol)
            for a in self._schema
            for symbol in self._of_rule(a, (ad.get("rules") or {}).get(a["name"]))
        )

    def _of_rule(self, attribute: dict, rule: dict | None) -> Iterable:
        name, kind = attribute["name"], attribute["kind"]
        values, cuts = self._values[name], self._cuts[name]
        if kind == "range":
            low, high = (rule or {}).get("min"), (rule or {}).get("max")
            first = 0 if low is None else bisect_right(cuts, low)
            last = len(cuts) if high is None else bisect_right(cuts, high)
            yield from range(first, last + 1)
        include = (rule or {}).get("include")
        exclude = {spell(v) for v in (rule or {}).get("exclude") or ()}
        if kind == "categorical":
            accepted = values if include is None else {spell(v) for v in include}
            yield from accepted - exclude
        if kind == "set":
            for value in include or ():
                yield from (("bit", bit) for bit in self._bloom_bits(spell(value)))
        if not has_rule(rule):
            yield "any", "unknown"
        if (include is None and kind != "range") or not has_rule(rule):
            yield "any", "other"

    def _split(self, prefix: Prefix, units: list[frozenset]) -> list[frozenset]:
        if not prefix:
            return [frozenset().union(*units)]
        most = self._most[min(len(prefix), len(self._most)) - 1]
        if self._fill is None:
            return deal(units, most)
        k = 1
        while True:
            dealt = deal(units, k)
            set_bits = sum(map(len, dealt))
            if k == most or set_bits <= self._fill * self._total * len(dealt):
                return dealt
            k *= 2

    def allows(self, prefix: Prefix, request: dict) -> bool:
        """Does any partition of the prefix pass?"""
        attributes = request.get("attributes") or {}
        return any(
            all(self._passes(a, row, attributes.get(a["name"])) for a in self._schema)
            for row in self.partitions[prefix]
        )

    def _passes(self, attribute: dict, row: frozenset, value) -> bool:
        name, kind = attribute["name"], attribute["kind"]
        if value is None or value == []:
            return (name, ("any", "unknown")) in row
        if kind == "range":
            return (name, bisect_right(self._cuts[name], value)) in row
        if kind == "categorical":
            known = spell(value) in self._values[name]
            return (name, spell(value) if known else ("any", "other")) in row
        return (name, ("any", "other")) in row or any(
            all((name, ("bit", bit)) in row for bit in self._bloom_bits(spell(one)))
            for one in value
        )

    def prefixes(self, request: dict) -> set[Prefix]:
        """All prefixes that pass."""
        return {prefix for prefix in self.partitions if self.allows(prefix, request)}


def deal(units: list[frozenset], k: int) -> list[frozenset]:
    """Each unit to the partition that is least full with it in, the first of equals."""
    dealt: list[set] = [set() for _ in range(k)]
    used = set()
    for unit in units:
        best = min(range(k), key=lambda p: (len(dealt[p]) + len(unit - dealt[p]), p))
        dealt[best] |= unit
        used.add(best)
    return [frozenset(dealt[partition]) for partition in sorted(used)]
