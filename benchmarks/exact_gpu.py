"""How long does the exact matcher take on a GPU, at the paper's size?

Arrays as `benchmarks.exact_arrays` draws them, 16 requests of 64 places. Every word is first
compared with the torch reference on the same device. Then, each over many runs with CUDA events:

- `latency`: the whole batch, the copy of the requests included, as one CUDA graph on its stream;
- `host`: what `start` costs the calling thread;
- each stage alone, in several shapes, with the bytes it must move at least.

Variants: `postings` and `rules`, the two ways to decide value rules.

    python -m benchmarks.exact_gpu [--scale 1] [--repeats 300]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from benchmarks import record
from benchmarks.exact_arrays import Arrays, Maker
from benchmarks.kernels import timing
from grace.index.batch import Batch
from grace.index.device_rules import DeviceIntervals
from grace.index.exact_device import ExactOnDevice
from grace.index.rules import RangeRules
from grace.kernels.leaf_words import leaf_words
from grace.kernels.leaf_words.kernel import leaf_words_triton
from grace.kernels.rule_words import interval_words, value_words
from grace.kernels.segment_or import segment_or
from grace.kernels.segment_or.kernel import Chunks, segment_or_triton
from grace.kernels.signature_words import signature_words
from grace.kernels.signature_words.kernel import signature_words_triton

PEAK_BYTES_PER_S = 4.8e12  # of an H200's memory, from its data sheet


def main() -> None:
    """Check against the reference, time, write the result file."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--requests", type=int, default=16)
    parser.add_argument("--repeats", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()

    begin = time.perf_counter()
    arrays = Maker(options.scale, options.requests, options.seed, "cuda").arrays()
    print(f"drawn in {time.perf_counter() - begin:.1f} s: {arrays.counts}", flush=True)
    want = reference_words(arrays)
    share = (want[int(arrays.trie.level_offsets[-2]) :] & 1 != 0).double().mean().item()
    print(f"reference done; request 0 may see {share:.2%} of the SIDs", flush=True)

    case = "paper" if options.scale == 1 else f"scale {options.scale}"
    rows = []
    for variant in ("postings", "rules"):
        begin = time.perf_counter()
        matcher = ExactOnDevice(*arrays.matcher_arguments, postings=variant == "postings")
        torch.cuda.synchronize()
        print(f"{variant}: uploaded in {time.perf_counter() - begin:.1f} s", flush=True)
        check(matcher, arrays, want)
        rows += list(measure(matcher, arrays, case, variant, options.repeats))
        del matcher
        torch.cuda.empty_cache()
    record.show("exact", rows)
    print(record.write("exact", rows))


def reference_words(arrays: Arrays) -> Tensor:
    """int32 [S] on the device, by the kernels' references alone."""
    tables, trie = arrays.tables, arrays.trie
    batch = Batch.of(arrays.requests, len(tables.rules))
    words = []
    for attribute, rules in enumerate(tables.rules):
        if isinstance(rules, RangeRules):
            points = torch.from_numpy(batch.numbers[attribute]).cuda()
            ends = rules.min.cuda(), rules.max.cuda()
            words.append(interval_words(*ends, points, True, batch.everyone, backend="reference"))
            continue
        carried = torch.zeros(len(rules.values), dtype=torch.int32)
        values, who = map(torch.from_numpy, batch.carried[attribute])
        carried[values.long()] = who
        lists = (
            rules.include_offsets, rules.include_values, rules.exclude_offsets,
            rules.exclude_values, carried,
        )  # fmt: skip
        known = int(batch.known[attribute])
        words.append(
            value_words(*(t.cuda() for t in lists), known, batch.everyone, backend="reference")
        )
    ends, at = tables.windows.cuda().unbind(1), torch.from_numpy(batch.at).cuda()
    words.append(interval_words(*ends, at, False, batch.everyone, backend="reference"))
    signatures = signature_words(tables.signatures.cuda().unbind(1), words, backend="reference")
    ads = (arrays.ad_signatures.cuda(), arrays.ad_state.cuda(), arrays.sid_ad_offsets.cuda())
    nodes = torch.empty(trie.num_nodes, dtype=torch.int32, device="cuda")
    bounds, child_offsets = trie.level_offsets.tolist(), trie.child_offsets.cuda()
    nodes[bounds[-2] :] = leaf_words(signatures, *ads, backend="reference")
    for level in range(trie.num_levels - 1, -1, -1):
        first, last = bounds[level], bounds[level + 1]
        offsets = child_offsets[first : last + 1]
        nodes[first:last] = segment_or(nodes, offsets, 1, backend="reference")
    return nodes


def check(matcher: ExactOnDevice, arrays: Arrays, want: Tensor) -> None:
    """Assert that every word is the reference's, twice, and with one request after many."""
    for _ in range(2):
        matcher.words.fill_(-1)
        verdict = matcher.start(arrays.requests)
        torch.cuda.current_stream().wait_event(matcher.ready)
        assert torch.equal(verdict.words, want)
        assert verdict.root.tolist() == [
            bool(want[0].item() >> b & 1) for b in range(len(verdict.root))
        ]
        alone = matcher.start(arrays.requests[:1])
        torch.cuda.current_stream().wait_event(matcher.ready)
        assert torch.equal(alone.words, want & 1)


def measure(
    matcher: ExactOnDevice, arrays: Arrays, case: str, variant: str, repeats: int
) -> Iterator[dict]:
    """Rows of one variant: the whole, the host's part, each stage."""
    counts = arrays.counts

    def timed(metric: str, replay: Callable[[], object], num_bytes: int | None = None) -> dict:
        times_ms = timing.event_times(replay, repeats, matcher._stream)
        sizes = {} if num_bytes is None else {"bytes": num_bytes}
        stats = record.quantiles(times_ms)
        if num_bytes is not None:
            speed = num_bytes / (stats["value"] / 1e3) / PEAK_BYTES_PER_S
            print(f"  {metric}: {stats['value']:.4f} ms, {speed:.0%} of peak", flush=True)
        return record.row(case, variant, metric, "ms", **stats, counts=counts | sizes)

    matcher.start(arrays.requests)
    torch.cuda.synchronize()
    rules, tables = matcher._rules, arrays.tables
    stages = []
    for attribute in rules[:-1]:
        interval = isinstance(attribute, DeviceIntervals)
        name = "numbers" if interval else f"values {attribute.attribute}"
        stages.append(
            (f"stage {name}", lambda a=attribute: a.enqueue(matcher._staging.device), None)
        )
    window_bytes = tables.windows.nbytes + 4 * len(tables.windows)
    stages.append(
        ("stage windows", lambda: rules[-1].enqueue(matcher._staging.device), window_bytes)
    )
    columns = [column for column, _ in matcher._columns]
    words = [table for _, table in matcher._columns]
    signature_bytes = sum(t.nbytes for t in (*columns, *words, matcher.signature_words))
    for block in (256, 512, 1024):
        stages.append(
            (
                f"stage signatures, block {block}",
                lambda block=block: signature_words_triton(
                    columns, words, matcher.signature_words, block
                ),
                signature_bytes,
            )
        )
    leaves = matcher._leaves
    leaf_bytes = sum(
        t.nbytes
        for t in (matcher.signature_words, matcher.live_signatures, matcher.sid_ad_offsets, leaves)
    )
    for limit in (1, 2, 4, 8):
        chunks = Chunks.of(arrays.sid_ad_offsets, limit, "cuda")
        for block in (256, 512, 1024):
            stages.append(
                (
                    f"stage ads, block {block}, limit {limit}",
                    lambda block=block, chunks=chunks: leaf_words_triton(
                        matcher.signature_words, matcher.live_signatures, None,
                        matcher.sid_ad_offsets, leaves, chunks, block,
                    ),
                    leaf_bytes,
                )
            )  # fmt: skip
    for offsets, out, chunks in matcher._levels:
        stages.append(
            (
                f"stage level of {len(out)}",
                lambda offsets=offsets, out=out, chunks=chunks: segment_or_triton(
                    matcher.words, offsets, 1, out, chunks
                ),
                offsets.nbytes + out.nbytes + 4 * int(offsets[-1] - offsets[0]),
            )
        )
    floor = arrays_bytes(matcher, arrays, signature_bytes + leaf_bytes + window_bytes)
    yield timed("latency", matcher._graph.replay, floor)
    host_ms = []
    for _ in range(min(repeats, 100)):
        torch.cuda.synchronize()
        begin = time.perf_counter_ns()
        matcher.start(arrays.requests)
        host_ms.append((time.perf_counter_ns() - begin) / 1e6)
    yield record.row(case, variant, "host", "ms", **record.quantiles(host_ms), counts=counts)
    for metric, run, num_bytes in stages:
        yield timed(metric, timing.capture(run, matcher._stream).replay, num_bytes)
    memory = torch.cuda.max_memory_allocated()
    yield record.row(case, variant, "peak GPU memory", "bytes", memory, counts=counts)


def arrays_bytes(matcher: ExactOnDevice, arrays: Arrays, above: int) -> int:
    """Bytes that a batch must move: every array once; of value rules the words alone count."""
    levels = sum(
        offsets.nbytes + out.nbytes + 4 * int(offsets[-1] - offsets[0])
        for offsets, out, _ in matcher._levels
    )
    return above + levels + sum(rules.words.nbytes for rules in matcher._rules[:-1])


if __name__ == "__main__":
    main()
