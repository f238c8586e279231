"""What does a whole batch take, level by level of GRACE's Table 6?

    python -m benchmarks.serve_levels       # on a GPU

`bench_decode` times the loops alone; here a level's loop stands in the server's engine, and batches
of 16 requests come one after the other: reading requests, features, encoder, loop, expansion and
the last filter are all in the time, answers' text and HTTP are not. Levels before the trie are
measured inside it, where Grace's results come from; so L0 to L4 are a little slower than the paper
would have them.
"""

from __future__ import annotations

import argparse
import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch

import grace.retrieve.own_model
from benchmarks import record
from benchmarks.decode.levels import LEVELS
from benchmarks.decode.searches import note
from benchmarks.decode.shape import read_shape, small_shape
from benchmarks.serving.batches import batch_times, warm
from benchmarks.serving.rows import full_rows
from benchmarks.serving.world import World, paper_world
from grace.model.step_decoder import StepDecoder
from grace.serve import Engine, EngineOptions

CASE = "levels"


@dataclass(frozen=True)
class Level:
    """How one level is served.

    Attributes:
        name: as `bench_decode` calls it.
        plan: `fixed` or `dynamic`.
        matching: as `Retriever` takes it.
        decoder: its steps.
    """

    name: str
    plan: str = "dynamic"
    matching: str = "valid"
    decoder: type[StepDecoder] = StepDecoder


ALL = (
    *(Level(name, "fixed", decoder=decoder) for name, decoder in LEVELS.items()),
    Level("D1 trie"),
    Level("D3 bitmask+bloom", matching="bitmask+bloom"),
)
"""D0 and D2 are no modes of a retriever: one leaves the trie, the other half of a matcher's rules.
What comes after D3, exact matching with prefix tables, is `benchmarks.serve`'s."""


def main(arguments: Sequence[str] | None = None) -> list[dict]:
    """Measure, show and save."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--scale", type=float, default=1.0, help="of the paper's catalogue")
    parser.add_argument("--batches", type=int, default=100, help="of each level")
    parser.add_argument("--events", type=int, default=64, help="of a history")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--small", action="store_true", help="tiny sizes, nothing saved")
    options = parser.parse_args(arguments)
    shape_of = small_shape if options.small else read_shape
    device = "cuda" if torch.cuda.is_available() and not options.small else "cpu"
    scale = 1e-4 if options.small else options.scale
    world = paper_world(scale, shape_of("dynamic"), options.events, options.seed, device)
    gc.collect()
    gc.freeze()  # requests that a server would not hold
    rows: list[dict] = []
    try:
        for level in ALL:
            rows += level_rows(level, world, shape_of(level.plan).plan, device, options.batches)
            note(f"{CASE}: {level.name}")
    finally:  # what is measured stays, even if a later level fails
        gc.unfreeze()
        if rows:
            record.show("serve_levels", rows)
            if not options.small:
                print(record.write("serve_levels", rows))
    return rows


def level_rows(
    level: Level, world: World, plan: object, device: str, batches: int
) -> Iterator[dict]:
    """Rows of batches that come alone."""
    with decoding_with(level.decoder):
        engine = Engine(
            world.index, world.model, plan, EngineOptions(max_batch=16), device=device,
            matching=level.matching, table_bytes=0,
        )  # fmt: skip
    try:
        warm(engine, world.requests)
        times_ms, stages = batch_times(engine, world.requests, batches, as_text=False)
    finally:
        engine.drain()
        del engine
        gc.collect()
        if device == "cuda":
            torch.cuda.empty_cache()
    yield from full_rows(CASE, level.name, times_ms, stages, {**world.counts, "batch": 16})


@contextmanager
def decoding_with(decoder: type[StepDecoder]) -> Iterator[None]:
    """Retrievers made inside decode with other steps than a server's."""
    module = grace.retrieve.own_model
    module.StepDecoder = decoder
    try:
        yield
    finally:
        module.StepDecoder = StepDecoder


if __name__ == "__main__":
    main()
