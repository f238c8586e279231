"""How long does the exact matcher take on a CPU, beside numpy?

Arrays as `benchmarks.exact_arrays` draws them, 16 requests of 64 places, one word per trie node.
Variants:

- `native`: `ExactMatcher`, which retrieval calls, every node decided;
- `numpy, by request`: the same decisions in whole-array numpy, one request after the other;
- `numpy, by word`: numpy again, all requests at once, a bit each;
- `native, visited nodes`: the lazy form, for a beam search of `--beams` beams.

All but the last must return the same words, which is asserted before anything is timed. Rows of
stages show where the native time goes; the cost model's figures (`grace.index.exact_cost`) are made
from them and from the lazy rows.

    OMP_NUM_THREADS=1 python -m benchmarks.exact --scale 0.025     # 10^6 ads
    OMP_NUM_THREADS=1 python -m benchmarks.exact --scale 0.025 1   # and 4·10^7
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from statistics import median

import numpy as np
import torch

from benchmarks import record
from benchmarks.exact_arrays import Arrays, Maker
from grace.index.batch import Batch
from grace.index.exact import ExactMatcher
from grace.index.rules import RangeRules
from grace.kernels.leaf_words import leaf_words
from grace.kernels.visited_children.reference import visited_children_reference


def main() -> None:
    """Check that all variants agree, time them, write the result file."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--scale", type=float, nargs="+", default=[0.025])
    parser.add_argument("--requests", type=int, default=16)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--beams", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(1)

    rows = []
    for scale in options.scale:
        arrays = Maker(scale, options.requests, options.seed, "cpu").arrays()
        print(arrays.counts, flush=True)
        case = f"{len(arrays.ad_signatures):,} ads"
        rows += list(measure(arrays, case, options))
    record.show("exact", rows)
    print(record.write("exact", rows, machine="cpu"))


def measure(arrays: Arrays, case: str, options: argparse.Namespace) -> Iterator[dict]:
    """Rows of one size."""
    matchers = {w: ExactMatcher(*arrays.matcher_arguments, workers=w) for w in options.workers}
    by_numpy = NumpyExact(arrays)
    want = by_numpy.by_word()
    for matcher in matchers.values():
        assert np.array_equal(matcher.start(arrays.requests).words.numpy(), want)
    for b, words in enumerate(by_numpy.by_request()):
        assert np.array_equal(words, want >> b & 1 != 0)
    slow = max(1, min(options.repeats // 5, int(3e6 / len(arrays.ad_signatures))))

    def timed(variant: str, metric: str, run: Callable[[], object], repeats: int) -> dict:
        times_ms = record.time_calls(run, repeats, warmup=min(repeats - 1, 2))
        stats = record.quantiles(times_ms)
        print(f"  {variant}, {metric}: {stats['value']:.3f} ms", flush=True)
        return record.row(case, variant, metric, "ms", **stats, counts=arrays.counts)

    variants = {
        "numpy, by request": (lambda: list(by_numpy.by_request()), slow),
        "numpy, by word": (by_numpy.by_word, slow),
    }
    for workers, matcher in matchers.items():
        run = lambda matcher=matcher: matcher.start(arrays.requests)  # noqa: E731
        variants[f"native, {workers} threads"] = run, options.repeats
    latencies = {}
    for variant, (run, repeats) in variants.items():
        latencies[variant] = timed(variant, "latency", run, repeats)
        yield latencies[variant]
    one = f"native, {options.workers[0]} threads"
    for baseline in ("numpy, by request", "numpy, by word"):
        ratio = latencies[baseline]["value"] / latencies[one]["value"]
        yield record.row(case, f"{one} over {baseline}", "speedup", "ratio", ratio)
    matcher = matchers[options.workers[0]]
    for stage, run in stages(matcher, arrays):
        yield timed(one, stage, run, options.repeats)
    yield from measure_lazy(matcher, arrays, case, want, options)


def stages(matcher: ExactMatcher, arrays: Arrays) -> Iterator[tuple[str, Callable[[], object]]]:
    """The native matcher's parts."""
    batch = Batch.of(arrays.requests, len(arrays.tables.rules))
    yield "stage requests", lambda: Batch.of(arrays.requests, len(arrays.tables.rules))
    yield "stage place lists", lambda: matcher._rule_words(batch, len(arrays.tables.rules) - 1)
    yield "stage rules and signatures", lambda: matcher.signature_words(batch)
    words = matcher.signature_words(batch)
    out = torch.empty(len(arrays.sid_ad_offsets) - 1, dtype=torch.int32)
    ads = arrays.ad_signatures, arrays.ad_state, arrays.sid_ad_offsets
    yield "stage ads to SIDs", lambda: leaf_words(words, *ads, out=out, **matcher._options)
    yield "stage ads to SIDs and levels", lambda: matcher.node_words(words)


def measure_lazy(
    matcher: ExactMatcher, arrays: Arrays, case: str, words: np.ndarray, options: argparse.Namespace
) -> Iterator[dict]:
    """Rows of the lazy form: each step of a search with random eligible beams, a batch each."""
    batch = Batch.of(arrays.requests, len(arrays.tables.rules))
    draw, trie, beams = np.random.default_rng(options.seed), arrays.trie, options.beams
    child_offsets, total_ms = trie.child_offsets.numpy(), 0.0
    for level in range(trie.num_levels):
        first, last = trie.level_offsets[level : level + 2].tolist()
        nodes = np.full((batch.num_requests, min(beams, last - first)), -1)
        for b in range(batch.num_requests):
            eligible = first + np.flatnonzero(words[first:last] >> b & 1)
            some = draw.permutation(eligible)[: nodes.shape[1]]
            nodes[b, : len(some)] = some
        chosen = torch.from_numpy(nodes)
        want = visited_children_reference(chosen, trie.child_offsets, torch.from_numpy(words))
        assert torch.equal(matcher.visits(batch).children(chosen, workers=1), want)
        times_ms = record.time_calls(
            lambda chosen=chosen: matcher.visits(batch).children(chosen, workers=1),
            options.repeats,
        )
        distinct = np.unique(nodes[nodes >= 0])
        children = int((child_offsets[distinct + 1] - child_offsets[distinct]).sum())
        stats = record.quantiles(times_ms)
        total_ms += median(times_ms)
        print(f"  visited, level {level}: {children} children, {stats['value']:.3f} ms", flush=True)
        counts = {"children": children, "beams": nodes.shape[1]}
        yield record.row(
            case, "native, visited nodes", f"step {level}", "ms", **stats, counts=counts
        )
    yield record.row(case, "native, visited nodes", "sum of steps", "ms", total_ms)


class NumpyExact:
    """The exact matcher in numpy: whole-array operations, as one would write them."""

    def __init__(self, arrays: Arrays):
        self.arrays = arrays
        self.rules = []
        for rules in arrays.tables.rules:
            if isinstance(rules, RangeRules):
                self.rules.append((rules.min.numpy(), rules.max.numpy()))
                continue
            sides = (
                (rules.include_offsets.numpy(), rules.include_values.numpy()),
                (rules.exclude_offsets.numpy(), rules.exclude_values.numpy()),
            )
            self.rules.append([_Lists(*side) for side in sides])
        self.start, self.end = arrays.tables.windows.numpy().T.copy()
        self.columns = list(arrays.tables.signatures.numpy().T.copy())
        self.live = arrays.ad_state.numpy() == 0

    def by_request(self) -> Iterator[np.ndarray]:
        """bool [S] of each request."""
        tables = self.arrays.tables
        for request in self.arrays.requests:
            passed = (self.start <= request.targeting.at) & (request.targeting.at < self.end)
            passed[0] = True
            found = passed[self.columns[-1]]
            for a, (rules, table) in enumerate(zip(self.rules, tables.rules, strict=True)):
                if isinstance(table, RangeRules):
                    number = request.numbers[a]
                    passed = (rules[0] <= number) & (number <= rules[1])
                else:
                    carried = np.zeros(len(table.values), bool)
                    carried[request.value_ids[a]] = True
                    include, exclude = rules
                    passed = (include.empty | include.any(carried)) & ~exclude.any(carried)
                    passed &= bool(request.known[a])
                passed[0] = True
                found &= passed[self.columns[a]]
            yield self.up(np.where(self.live, found[self.arrays.ad_signatures.numpy()], False))

    def by_word(self) -> np.ndarray:
        """int32 [S], a bit per request."""
        batch = Batch.of(self.arrays.requests, len(self.rules))
        passed = self.intervals(self.start, self.end, batch.at, np.less)
        passed[0] = batch.everyone
        found = passed[self.columns[-1]]
        for a, (rules, table) in enumerate(zip(self.rules, self.arrays.tables.rules, strict=True)):
            if isinstance(table, RangeRules):
                passed = self.intervals(*rules, batch.numbers[a], np.less_equal)
            else:
                carried = np.zeros(len(table.values), np.int32)
                values, words = batch.carried[a]
                carried[values] = words
                include, exclude = rules
                passed = np.where(include.empty, -1, include.any(carried)) & ~exclude.any(carried)
                passed &= batch.known[a]
            passed[0] = batch.everyone
            found &= passed[self.columns[a]]
        return self.up(np.where(self.live, found[self.arrays.ad_signatures.numpy()], 0))

    def intervals(
        self, low: np.ndarray, high: np.ndarray, points: np.ndarray, before: np.ufunc
    ) -> np.ndarray:
        """int32 words of rules that accept an interval."""
        words = np.zeros(len(low), np.int32)
        for b, point in enumerate(points):
            inside = (low <= point) & before(point, high)
            words |= inside.astype(np.int32) << np.int32(b)
        return words

    def up(self, ads: np.ndarray) -> np.ndarray:
        """Ads to SIDs to every level; no SID and no inner node is empty."""
        trie = self.arrays.trie
        bounds, offsets = trie.level_offsets.numpy(), trie.child_offsets.numpy()
        nodes = np.empty(bounds[-1], ads.dtype)
        starts = self.arrays.sid_ad_offsets.numpy()[:-1]
        nodes[bounds[-2] :] = np.bitwise_or.reduceat(ads, starts)
        for level in range(trie.num_levels - 1, -1, -1):
            first, last = bounds[level], bounds[level + 1]
            children = nodes[last : bounds[level + 2]]
            starts = offsets[first:last] + 1 - last
            nodes[first:last] = np.bitwise_or.reduceat(children, starts)
        return nodes


class _Lists:
    """Lists of value ids, end to end."""

    def __init__(self, offsets: np.ndarray, values: np.ndarray):
        self.values = values
        self.empty = offsets[1:] == offsets[:-1]
        # Reductions over segments cannot do empty ones; the filled ones still touch each other.
        self.filled = np.flatnonzero(~self.empty)
        self.starts = offsets[self.filled]

    def any(self, carried: np.ndarray) -> np.ndarray:
        """The OR over each list of what its values are carried by."""
        found = np.zeros(len(self.empty), carried.dtype)
        if len(self.filled):
            found[self.filled] = np.bitwise_or.reduceat(carried[self.values], self.starts)
        return found


if __name__ == "__main__":
    main()
