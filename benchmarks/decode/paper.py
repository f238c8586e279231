"""GRACE's shape: the trie alone, every matcher, FP8, fixed beams, one request."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from benchmarks import record
from benchmarks.decode.cost import flops_in_tables, flops_per_request
from benchmarks.decode.searches import (
    Plain,
    Prepared,
    Variant,
    free_memory,
    latency_rows,
    note,
    prepared,
)
from benchmarks.decode.shape import Shape
from benchmarks.decode.world import World

PACE_MS = 30
"""Between two batches: in about that time GRACE's service gathers the next 16 users (section 5)."""
NO_TABLES = ", no tables"
"""Ends the name of a variant without prefix tables; a retriever on a GPU has them."""
PAPER = (
    Variant("no-matching" + NO_TABLES),
    Variant("exact" + NO_TABLES, "exact"),
    Variant("exact+fp8" + NO_TABLES, "exact", "float8"),
    Variant("no-matching", tables=True),
    Variant("exact", "exact", tables=True),
    Variant("bitmask+bloom", "bitmask+bloom", tables=True),
    Variant("exact+fp8", "exact", "float8", tables=True),
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


def paper_rows(
    world: World, dynamic: Shape, fixed: Shape, replays: int, seed: int
) -> Iterator[dict]:
    """Rows of the cases `paper`, `paper fixed` and `paper batch 1`; checked, then timed."""
    one = dynamic.changed(batch=1)
    two = [variant for variant in PAPER if variant.name in ("no-matching", "exact")]
    for precision in ("bfloat16", "float8"):
        chosen = [variant for variant in PAPER if variant.precision == precision]
        yield from case_rows("paper", world, dynamic, chosen, replays, seed)
        if precision == "bfloat16":
            yield from case_rows("paper fixed", world, fixed, two, -(-replays // 2), seed)
        alone = [variant for variant in chosen if variant.matching in (None, "exact")]
        yield from case_rows("paper batch 1", world, one, alone, replays, seed)


def case_rows(
    case: str, world: World, shape: Shape, chosen: Sequence[Variant], replays: int, seed: int
) -> Iterator[dict]:
    """Rows of one shape.

    What is `added` is over `no-matching`; what tables save, over the same variant without them.
    Both come before.
    """
    device = world.device
    decoder, context = shape.decoder(seed, device), shape.context(seed, device)
    plain = {}
    for matching in dict.fromkeys(variant.matching for variant in chosen):
        matcher, requests = world.matcher(matching), world.requests[: shape.batch]
        path = Plain(decoder, shape)
        plain[matching] = path.find(world.trie_there, matcher, requests, context)
        del path
        free_memory(device)
    medians: dict[str, float] = {}
    for variant in chosen:
        note(f"{case}: {variant.name}")
        one = prepared(world, shape, variant, decoder, context)
        share = one.check(plain[variant.matching])
        times_ms = one.times(replays)
        medians[variant.name] = float(np.median(times_ms))
        counts = {"sids": world.trie.level_sizes[-1], **computed(one)}
        references = REFERENCES.get((case, variant.name), {})
        yield from latency_rows(case, variant.name, shape, times_ms, counts, references)
        yield from other_latency_rows(case, one, replays)
        yield from difference_rows(case, variant, medians)
        tables = one.search.tables
        if tables is not None:
            levels = {"levels": len(tables.levels)}
            yield record.row(case, variant.name, "tables", "bytes", tables.num_bytes, counts=levels)
        yield record.row(case, variant.name, "overlap with float32", "rate", share)
        del one, tables
        free_memory(device)


def computed(one: Prepared) -> dict[str, float]:
    """What of the model's operations a search computes, its tables' share taken off."""
    config, widths, tables = one.shape.config, one.shape.plan.widths, one.search.tables
    flops = flops_per_request(config, widths)
    if tables is not None:
        flops -= flops_in_tables(config, widths, len(tables.levels))
    return {"computed_gflop_per_request": round(flops / 1e9, 3)}


def other_latency_rows(case: str, one: Prepared, replays: int) -> Iterator[dict]:
    """Rows of the loop without the exact matcher's work, and of batches that come at a pace."""
    variant = one.variant
    if variant.matching == "exact":
        loop_ms = one.times(-(-replays // 4), matching=False, warmup_ms=50)
        yield record.row(
            case, variant.name, "latency, words there before", "ms", **record.quantiles(loop_ms)
        )
    if case == "paper" and variant.tables:
        paced_ms = one.times(-(-replays // 5), warmup_ms=50, every_ms=PACE_MS)
        yield record.row(
            case, variant.name, "latency at a pace", "ms", **record.quantiles(paced_ms),
            counts={"every_ms": PACE_MS},
        )  # fmt: skip


def difference_rows(case: str, variant: Variant, medians: dict[str, float]) -> Iterator[dict]:
    """Rows of what matching adds and what tables save, as far as the other variant is measured."""
    median = medians[variant.name]
    if variant.tables and variant.matching is not None and variant.precision == "bfloat16":
        yield record.row(
            case, variant.name, "added latency", "ms", max(median - medians["no-matching"], 0),
            reference=REFERENCES.get((case, variant.name), {}).get("added latency"),
        )  # fmt: skip
    without = variant.name + NO_TABLES
    if without in medians:
        saved = max(medians[without] - median, 0.0)
        yield record.row(case, variant.name, "saved latency", "ms", saved)
