"""GRACE's shape with one size changed at a time, inside a trie of random SIDs, without matching."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache

import torch

from benchmarks.decode.searches import Plain, Prepared, Variant, free_memory, latency_rows, note
from benchmarks.decode.shape import Shape
from benchmarks.exact_arrays import random_trie
from grace.decode import full_plan
from grace.index.trie import Trie

SWEEPS = {
    "batch": (1, 2, 4, 8, 16, 32),
    "beams": (128, 256, 512, 1024, 2048),
    "vocab": (256, 512, 1024, 2048, 4096, 8192),
    "levels": (3, 4, 5, 6),
    "context": (64, 128, 256, 512, 1024),
}
SMALL = {"batch": (1, 4), "beams": (5, 12), "vocab": (33,), "levels": (1, 3), "context": (1, 8)}
NO_MATCHING = Variant("no-matching")
MOST_PLAIN_ROWS = 20_000
"""Rows up to which a shape is compared with the plain path, whose float32 takes room."""


def sweep_rows(
    middle: Shape,
    points: dict[str, Sequence[int]],
    num_sids: int,
    replays: int,
    seed: int,
    device: str,
) -> Iterator[dict]:
    """Rows of cases such as `batch 4`; the shape in the middle is measured once for all of them."""
    tries = lru_cache(maxsize=1)(
        lambda vocab, levels: draw_trie(num_sids, vocab, levels, seed, device)
    )
    times: dict[Shape, list[float]] = {}
    for name, values in points.items():
        for value in values:
            config = shape_at(middle, name, value).config
            trie = tries(config.vocab_size, config.num_levels)
            shape = shape_at(middle, name, value)
            shape = shape.changed(plan=shape.plan.limited(trie.level_sizes))
            if shape not in times:
                note(f"{name} {value}")
                times[shape] = measure(shape, trie, replays, seed, device)
            counts = {"sids": trie.level_sizes[-1]}
            yield from latency_rows(
                f"{name} {value}", NO_MATCHING.name, shape, times[shape], counts
            )


def shape_at(middle: Shape, name: str, value: int) -> Shape:
    """The shape with one size changed; its plan is as wide as it was wherever it can be."""
    widest = middle.plan.num_sids
    if name == "batch":
        return middle.changed(batch=value)
    if name == "beams":
        return middle.changed(plan=full_plan(middle.config.num_levels, value))
    if name == "levels":
        return middle.changed(plan=full_plan(value, widest), num_levels=value)
    if name == "vocab":
        plan = full_plan(middle.config.num_levels, widest)
        return middle.changed(plan=plan, vocab_size=value)
    recent = min(middle.config.num_recent_tokens, value)
    return middle.changed(num_context_tokens=value, num_recent_tokens=recent)


def measure(shape: Shape, trie: Trie, replays: int, seed: int, device: str) -> list[float]:
    """Check one shape, then time it."""
    decoder, context = shape.decoder(seed, device), shape.context(seed, device)
    one = Prepared(shape, NO_MATCHING, trie, None, [], decoder, context)
    if shape.batch * max(shape.plan.widths) <= MOST_PLAIN_ROWS:
        one.check(Plain(decoder, shape).find(trie, None, [], context))
    times_ms = one.times(replays)
    del one
    free_memory(device)
    return times_ms


def draw_trie(num_sids: int, vocab: int, levels: int, seed: int, device: str) -> Trie:
    """A trie of random SIDs on the device: at most half of those that there are."""
    draw = torch.Generator(device).manual_seed(seed)
    num_sids = max(min(num_sids, vocab**levels // 2), 1)
    return random_trie(num_sids, vocab, levels, draw).to(device)
