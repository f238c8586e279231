"""How many ads a second does the last filter check on one core?

The demo's rules on 10^6 ads, 4 attributes, windows, pauses and 16 requests. Every ad of the
catalogue is checked for every request, one request after the other in one thread. Variants:

- `native`: `Index.expand`, what retrieval calls; it stops at the first reason to refuse.
- `native, all reasons`: `Index.explain`, what evaluation calls.
- `numpy, by ad`: the same work in arrays, every ad decided from its own rules.
- `numpy, by rule`: each distinct rule decided once a request, then looked up for each ad.

All return the same accepted ads, which is asserted before anything is timed. Nothing is kept from
one request or repeat to the next.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch

import grace
import grace.demo
from benchmarks import record
from grace.demo.synthetic import demo_catalog, synthetic_requests
from grace.index.rules import CompiledTargeting, RangeRules, ValueRules

SCHEMA = Path(grace.demo.__file__).with_name("schema.yaml")


def main() -> None:
    """Check that all variants agree, time them, write the result file."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--ads", type=int, default=1_000_000)
    parser.add_argument("--requests", type=int, default=16)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(1)

    index = grace.build_index(demo_catalog(options.ads, options.seed), SCHEMA)
    requests = [
        index.compile(request["attributes"], request["at"])
        for request in synthetic_requests(options.requests, options.ads, options.seed)
    ]
    sids, positions = np.arange(index.num_sids), np.arange(index.num_ads)
    variants = {
        "native": lambda request: index.expand(sids, request).positions,
        "native, all reasons": lambda request: np.flatnonzero(
            index.explain(positions, request) == 0
        ),
        "numpy, by ad": NumpyFilter(index, rules_by_ad=True).accepted,
        "numpy, by rule": NumpyFilter(index, rules_by_ad=False).accepted,
    }
    accepted = [variants["native"](request) for request in requests]
    for variant, filter_ads in variants.items():
        for request, expected in zip(requests, accepted, strict=True):
            assert np.array_equal(filter_ads(request), expected), variant

    counts = {
        "ads": index.num_ads,
        "requests": len(requests),
        "attributes": len(index.schema.attributes),
        "signatures": len(index.data.tables.signatures),
        "accepted": sum(map(len, accepted)),
    }
    checks = index.num_ads * len(requests)
    rows = []
    for variant, filter_ads in variants.items():
        times_ms = record.time_calls(
            lambda filter_ads=filter_ads: [filter_ads(request) for request in requests],
            options.repeats,
            warmup=1,
        )
        speeds = record.quantiles([checks / (time_ms / 1e3) for time_ms in times_ms])
        del speeds["p99"]  # of a throughput it is the best call, not the worst
        rows.append(record.row("demo", variant, "ad checks", "1/s", **speeds, counts=counts))
    record.show("filter", rows)
    print(record.write("filter", rows, machine="cpu"))


class NumpyFilter:
    """The last filter in numpy, for all ads of an index at once.

    Args:
        rules_by_ad: lay out each ad's own rules and decide each ad from them, as the native filter
            does. Otherwise decide each distinct rule and look its verdict up for each ad.
    """

    def __init__(self, index: grace.Index, rules_by_ad: bool):
        tables = index.data.tables
        signatures = tables.signatures.numpy()[index.data.ad_signatures.numpy()]
        self.paused = index.ad_state.numpy() != 0
        self.start, self.end = tables.windows.numpy()[signatures[:, -1]].T.copy()
        self.rule_ids = signatures[:, :-1].T.copy()
        self.rules = [
            Ranges(rules) if isinstance(rules, RangeRules) else Values(rules)
            for rules in tables.rules
        ]
        self.rules_by_ad = rules_by_ad
        if rules_by_ad:
            for rules, ids in zip(self.rules, self.rule_ids, strict=True):
                rules.take(ids)

    def accepted(self, request: CompiledTargeting) -> np.ndarray:
        """Positions of the ads that accept the request, ascending."""
        at = request.targeting.at
        passed = ~self.paused & (self.start <= at) & (at < self.end)
        for a, (rules, ids) in enumerate(zip(self.rules, self.rule_ids, strict=True)):
            if not request.known[a]:
                passed &= ids == 0  # rule 0 asks nothing
                continue
            verdicts = rules.accept(request.numbers[a], request.value_ids[a])
            passed &= verdicts if self.rules_by_ad else verdicts[ids]
        return np.flatnonzero(passed)


class Ranges:
    """Rules of a range attribute, an entry each."""

    def __init__(self, rules: RangeRules):
        self.min, self.max = rules.min.numpy(), rules.max.numpy()

    def take(self, ids: np.ndarray) -> None:
        """Replace the rules by those of `ids`, in that order."""
        self.min, self.max = self.min[ids], self.max[ids]

    def accept(self, number: float, value_ids: np.ndarray) -> np.ndarray:
        """bool, a verdict per rule on a known number."""
        return (self.min <= number) & (number <= self.max)


class Values:
    """Rules of a categorical or set attribute: lists of included and excluded values."""

    def __init__(self, rules: ValueRules):
        self.num_values = len(rules.values)
        self.include = Lists(rules.include_offsets.numpy(), rules.include_values.numpy())
        self.exclude = Lists(rules.exclude_offsets.numpy(), rules.exclude_values.numpy())

    def take(self, ids: np.ndarray) -> None:
        """Replace the rules by those of `ids`, in that order."""
        self.include, self.exclude = self.include.take(ids), self.exclude.take(ids)

    def accept(self, number: float, value_ids: np.ndarray) -> np.ndarray:
        """bool, a verdict per rule on known values."""
        carried = np.zeros(self.num_values, bool)
        carried[value_ids] = True
        return (self.include.empty | self.include.any(carried)) & ~self.exclude.any(carried)


class Lists:
    """Lists of value ids, end to end."""

    def __init__(self, offsets: np.ndarray, values: np.ndarray):
        self.offsets, self.values = offsets, values
        self.empty = offsets[1:] == offsets[:-1]
        # Reductions over segments cannot do empty ones; the filled ones still touch each other.
        self.filled = np.flatnonzero(~self.empty)
        self.starts = offsets[self.filled]

    def take(self, ids: np.ndarray) -> Lists:
        """The lists of `ids`, in that order."""
        sizes = np.diff(self.offsets)[ids]
        offsets = np.concatenate([[0], np.cumsum(sizes)])
        shift = np.repeat(self.offsets[ids] - offsets[:-1], sizes)
        return Lists(offsets, self.values[np.arange(offsets[-1]) + shift])

    def any(self, carried: np.ndarray) -> np.ndarray:
        """bool, whether each list holds a value that is carried."""
        found = np.zeros(len(self.empty), bool)
        if len(self.filled):
            found[self.filled] = np.logical_or.reduceat(carried[self.values], self.starts)
        return found


if __name__ == "__main__":
    main()
