"""GRACE's shape: the trie alone, every matcher, FP8, fixed beams, one request."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from benchmarks import record
from benchmarks.decode.searches import (
    TABLE_BYTES,
    Plain,
    Variant,
    free_memory,
    latency_rows,
    prepared,
)
from benchmarks.decode.shape import Shape
from benchmarks.decode.world import World

NO_MATCHING, EXACT = Variant("no-matching"), Variant("exact", "exact")
PAPER = (
    NO_MATCHING,
    EXACT,
    Variant("bitmask+bloom", "bitmask+bloom"),
    Variant("exact+fp8", "exact", "float8"),
    Variant("no-matching+table", tables=True),
    Variant("exact+table", "exact", tables=True),
    Variant("exact+table+fp8", "exact", "float8", tables=True),
)
BY_DYNAMIC_BEAMS = "GRACE, 6.4: 15.5 ms with dynamic beams, before the trie and the matchers"
WITH_BLOOM = "GRACE, 6.4: 25.0 ms with the trie, bitmasks and Bloom filters"
REFERENCES = {
    ("paper", "no-matching"): {
        "latency": {"value": 15.5, "source": BY_DYNAMIC_BEAMS},
        "mfu": {"value": 0.466, "source": "GRACE, 6.5"},
    },
    ("paper", "bitmask+bloom"): {
        "latency": {"value": 25.0, "source": WITH_BLOOM},
        "mfu": {"value": 0.288, "source": "GRACE, 6.5"},
        "added latency": {"value": 8.6, "source": "GRACE, 6.4 and 8: 0.2 ms and 8.4"},
    },
    ("paper", "exact"): {"latency": {"value": 25.0, "source": WITH_BLOOM}},
    ("paper fixed", "no-matching"): {
        "latency": {"value": 17.8, "source": "GRACE, 6.4: paged cache, fixed beams, no trie"}
    },
}


def variants() -> list[Variant]:
    """Those that can run."""
    return [variant for variant in PAPER if TABLE_BYTES or not variant.tables]


def paper_rows(
    world: World, dynamic: Shape, fixed: Shape, replays: int, seed: int
) -> Iterator[dict]:
    """Rows of the cases `paper`, `paper fixed` and `paper batch 1`; checked, then timed."""
    yield from case_rows("paper", world, dynamic, variants(), replays, seed)
    yield from case_rows("paper fixed", world, fixed, [NO_MATCHING, EXACT], -(-replays // 2), seed)
    alone = [v for v in variants() if v.matching in (None, "exact")]
    yield from case_rows("paper batch 1", world, dynamic.changed(batch=1), alone, replays, seed)


def case_rows(
    case: str, world: World, shape: Shape, chosen: Sequence[Variant], replays: int, seed: int
) -> Iterator[dict]:
    """Rows of one shape. What is `added` is over `no-matching`, the first variant."""
    device = world.device
    decoder, context = shape.decoder(seed, device), shape.context(seed, device)
    plain = {}
    for matching in dict.fromkeys(variant.matching for variant in chosen):
        matcher, requests = world.matcher(matching), world.requests[: shape.batch]
        path = Plain(decoder, shape)
        plain[matching] = path.find(world.trie_there, matcher, requests, context)
        del path
        free_memory(device)
    counts = {"sids": world.trie.level_sizes[-1]}
    base = None
    for variant in chosen:
        print(f"{case}: {variant.name}", flush=True)
        one = prepared(world, shape, variant, decoder, context)
        share = one.check(plain[variant.matching])
        references = REFERENCES.get((case, variant.name), {})
        times_ms = one.times(replays)
        yield from latency_rows(case, variant.name, shape, times_ms, counts, references)
        median = float(np.median(times_ms))
        base = median if base is None else base
        if variant.matching == "exact":
            loop_ms = one.times(-(-replays // 4), matching=False)
            yield record.row(
                case, variant.name, "latency, words there before", "ms",
                **record.quantiles(loop_ms),
            )  # fmt: skip
        if variant.matching is not None and variant.precision == "bfloat16" and not variant.tables:
            yield record.row(
                case, variant.name, "added latency", "ms", max(median - base, 0.0),
                reference=references.get("added latency"),
            )  # fmt: skip
        yield record.row(case, variant.name, "overlap with float32", "rate", share)
        del one
        free_memory(device)
