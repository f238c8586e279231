"""An ad's rules in a few words, read from the index."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta

import numpy as np

from grace.catalog.tables import ALWAYS
from grace.index import Index
from grace.index.rules import RangeRules, ValueRules
from grace.serve.playground.titles import Titles

NAMED = 2
"""Values of a rule that are named; the rest is counted."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def rule_words(index: Index, position: int, titles: Titles) -> list[dict[str, str]]:
    """Return `[{"rule", "words"}]` of the ad at a position, such as age: "18 or more".

    Args:
        titles: name values that are ids of ads.
    """
    tables = index.data.tables
    *rules, window = tables.signatures[int(index.data.ad_signatures[position])].tolist()
    found = []
    for name, table, number in zip(index.schema.names, tables.rules, rules, strict=True):
        if number != 0:  # 0 is "no rule"
            ranged = isinstance(table, RangeRules)
            words = _range(table, number) if ranged else _values(table, number, titles)
            found.append({"rule": name, "words": words})
    if window != 0:
        found.append({"rule": "window", "words": _window(*tables.windows[window].tolist())})
    return found


def _range(rules: RangeRules, number: int) -> str:
    low, high = float(rules.min[number]), float(rules.max[number])
    if high == math.inf:
        return f"{low:g} or more"
    if low == -math.inf:
        return f"up to {high:g}"
    return f"{low:g}" if low == high else f"{low:g} to {high:g}"


def _values(rules: ValueRules, number: int, titles: Titles) -> str:
    include = _named(rules, rules.include_values, rules.include_offsets, number, titles)
    exclude = _named(rules, rules.exclude_values, rules.exclude_offsets, number, titles)
    return ", ".join(filter(None, [include, exclude and f"not {exclude}"]))


def _named(rules: ValueRules, values, offsets, number: int, titles: Titles) -> str:
    first, last = offsets[number : number + 2].tolist()
    few = values[first : min(last, first + NAMED)].numpy().astype(np.int64)
    names = [titles.spelled(text) or text for text in rules.values.take(few)]
    more = [f"{last - first - NAMED} more"] if last - first > NAMED else []
    return ", ".join(names + more)


def _window(start: int, end: int) -> str:
    if start == ALWAYS[0]:
        return f"until {_minute(end)}"
    if end == ALWAYS[1]:
        return f"from {_minute(start)}"
    first, last = _minute(start), _minute(end)
    return f"{first} to {last[5:] if first[:5] == last[:5] else last}"  # the year once


def _minute(microseconds: int) -> str:
    return f"{_EPOCH + timedelta(microseconds=microseconds):%Y-%m-%d %H:%M}"
