"""GRACE's Table 6: the levels, switched on one by one, and what Grace has beyond them."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from benchmarks import record
from benchmarks.decode.free import FreeSearch, free_steps
from benchmarks.decode.levels import LEVELS, bytes_of_copies
from benchmarks.decode.searches import (
    WARMUP_MS,
    Plain,
    Variant,
    free_memory,
    latency_rows,
    note,
    prepared,
)
from benchmarks.decode.shape import Shape
from benchmarks.decode.world import World
from benchmarks.kernels import timing
from benchmarks.peers.found import Found, overlap
from grace.model.beam_cache import BeamCache
from grace.model.decoder import Decoder
from grace.model.step_decoder import StepDecoder

CASE = "levels"
PAPER = {
    "L0 naive": 196.7,
    "L1 beams as queries": 69.3,
    "L2 coalesced": 20.3,
    "L3 fused": 20.4,
    "L4 paged": 17.8,
    "D0 dynamic beams": 15.5,
    "D1 trie": 16.4,
    "D2 bitmask": 16.6,
    "D3 bitmask+bloom": 25.0,
}
"""P50 in ms, all of section 6.4's prose; D1 is said to take 0.9 ms more than D0."""
INSIDE = (
    Variant("D1 trie"),
    Variant("D2 bitmask", "bitmask"),
    Variant("D3 bitmask+bloom", "bitmask+bloom"),
    Variant("exact", "exact"),
    Variant("exact, prefix table", "exact", tables=True),
    Variant("exact, prefix table, FP8", "exact", "float8", tables=True),
    Variant("exact, FP8", "exact", "float8"),
)
LARGEST_MEAN, LARGEST = 0.02, 0.2  # differences of logits in bfloat16
ROOM = 4 * 2**30  # bytes that a level needs besides copies of the context, and more


def ladder_rows(
    world: World, dynamic: Shape, fixed: Shape, replays: int, seed: int
) -> Iterator[dict]:
    """Rows of all levels, each checked before it is timed."""
    device = world.device
    decoder, context = dynamic.decoder(seed, device), dynamic.context(seed, device)
    steps = random_steps(fixed, seed, device)
    yield from free_rows(decoder, context, fixed, LEVELS, steps, replays)
    paged = {"D0 dynamic beams": StepDecoder}
    yield from free_rows(decoder, context, dynamic, paged, None, replays)
    counts = {"sids": world.trie.level_sizes[-1]}
    for variant in INSIDE:
        note(f"{CASE}: {variant.name}")
        matcher, requests = world.matcher(variant.matching), world.requests[: dynamic.batch]
        plain = Plain(decoder, dynamic).find(world.trie_there, matcher, requests, context)
        free_memory(device)
        one = prepared(world, dynamic, variant, decoder, context)
        one.check(plain)
        yield from rows_of(variant.name, dynamic, one.times(replays), counts)
        del one
        free_memory(device)


def free_rows(
    decoder: Decoder,
    context: Tensor,
    shape: Shape,
    levels: dict[str, type[StepDecoder]],
    steps: list | None,
    replays: int,
) -> Iterator[dict]:
    """Rows of levels without a trie.

    In float32, on a CPU, each finds what the plain module finds; in bfloat16 each must have the
    logits of paged blocks after the same random `steps`.
    """
    on_gpu = context.is_cuda
    precision = "bfloat16" if on_gpu else "float32"
    wanted = plain = None
    if on_gpu and steps is not None:
        wanted = search_of(StepDecoder, decoder, context, shape, precision).logits(steps)
    if not on_gpu:
        plain = plain_free(decoder, context, shape)
    for name, level in levels.items():
        rows = shape.batch * max(shape.plan.widths)
        needed = bytes_of_copies(level, rows, shape.config, 2)
        free_memory(context.device.type)
        if on_gpu and needed and needed + ROOM > torch.cuda.mem_get_info()[0]:
            print(f"{name}: left out, {needed / 1e9:.0f} GB of copies do not fit")
            continue
        note(f"{CASE}: {name}")
        search = search_of(level, decoder, context, shape, precision)
        if wanted is not None:
            assert_near(name, search.logits(steps), wanted)
        if plain is not None:
            share, difference = overlap(search.find(), plain)
            assert share == 1, (name, share)
            assert difference < 1e-3, (name, difference)
        if on_gpu:
            slow = name in ("L0 naive", "L1 beams as queries")
            number = max(replays // 5, 5) if slow else replays
            times_ms = timing.event_times(search.run, number, search.stream, WARMUP_MS)
        else:
            times_ms = record.time_calls(search.run, replays, warmup=1)
        yield from rows_of(name, shape, times_ms, {})
        del search


def search_of(
    level: type[StepDecoder], decoder: Decoder, context: Tensor, shape: Shape, precision: str
) -> FreeSearch:
    """A level's search with everything loaded."""
    steps = level(decoder, shape.config, context.device, precision)
    return FreeSearch(steps, shape, context.to(steps.dtype))


def rows_of(name: str, shape: Shape, times_ms: list[float], counts: dict) -> list[dict]:
    """Rows of one level, the paper's figure beside them."""
    references = {}
    if name in PAPER:
        references["latency"] = {"value": PAPER[name], "source": "GRACE, 6.4"}
    return latency_rows(CASE, name, shape, times_ms, counts, references)


def random_steps(shape: Shape, seed: int, device: str) -> list[tuple[Tensor | None, Tensor | None]]:
    """Random (parents, tokens) of every step, None at the first."""
    draw = torch.Generator(device).manual_seed(seed)
    steps: list[tuple[Tensor | None, Tensor | None]] = [(None, None)]
    for before, width in zip(shape.plan.widths, shape.plan.widths[1:], strict=False):
        sizes = (shape.batch, width)
        parents = torch.randint(before, sizes, generator=draw, device=device)
        tokens = torch.randint(shape.config.vocab_size, sizes, generator=draw, device=device)
        steps.append((parents, tokens))
    return steps


def assert_near(name: str, logits: list[Tensor], wanted: list[Tensor]) -> None:
    """Assert that logits differ by no more than bfloat16 makes them."""
    for t, (ours, theirs) in enumerate(zip(logits, wanted, strict=True)):
        difference = (ours.float() - theirs.float()).abs()
        assert difference.mean() <= LARGEST_MEAN, (name, t, difference.mean())
        assert difference.max() <= LARGEST, (name, t, difference.max())


def plain_free(decoder: Decoder, context: Tensor, shape: Shape) -> Found:
    """What the module itself finds, in float32."""
    keys = decoder.project_context(context)
    cache = BeamCache(shape.config, max(shape.plan.widths), keys[0][0])

    def step(parents: Tensor | None, tokens: Tensor | None, t: int) -> Tensor:
        if parents is not None:
            cache.reorder(parents, length=t)
        return decoder.step(keys, cache, tokens, t)

    return Found(*free_steps(step, shape, context.device))
