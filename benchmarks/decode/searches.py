"""Grace's searches as they are measured: ready to be run, checked against the plain path, timed."""

from __future__ import annotations

import gc
import os
import time
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from benchmarks import record
from benchmarks.decode.cost import flops_per_request, mfu
from benchmarks.decode.shape import Shape
from benchmarks.decode.world import World, assert_eligible, match_again
from benchmarks.kernels import timing
from benchmarks.peers.found import Found, overlap
from grace.decode import Beams, beam_search
from grace.decode.generator import Prefill
from grace.decode.step_search import StepSearch
from grace.index.device_matchers import DeviceMatcher
from grace.index.rules import CompiledTargeting
from grace.index.trie import Trie
from grace.kernels.logsumexp import logsumexp
from grace.model.beam_cache import BeamCache
from grace.model.decoder import Decoder
from grace.model.step_decoder import StepDecoder

TABLE_BYTES = 2**31
"""Memory of prefix tables in the variants that have them, a retriever's default on a GPU."""

# By precision: the least share of SIDs in common with the plain path in float32, and the largest
# difference of the scores of those. Random weights leave tens of candidates within a rounding error
# of a step's cut, so many differ and are no worse; a wrong kernel shares one in a hundred.
AGREE = {"float32": (1.0, 1e-3), "bfloat16": (0.6, 0.1), "float8": (0.1, 0.5)}
BEGAN = time.perf_counter()
WARMUP_MS = 1500
"""Until the power limit has found the clock that it holds."""


@dataclass(frozen=True)
class Variant:
    """What a search runs with.

    Attributes:
        name: of its rows.
        matching: None for the trie alone, `exact`, `bitmask+bloom` or `bitmask`.
        precision: of `StepDecoder`.
        tables: whether prefix tables are on.
    """

    name: str
    matching: str | None = None
    precision: str = "bfloat16"
    tables: bool = False


class Plain:
    """The plain path, in float32: module, cache and selection as the CPU runs them, step by step.

    It drives `beam_search` from contexts.
    """

    def __init__(self, decoder: Decoder, shape: Shape):
        self._decoder, self._shape = decoder, shape

    def find(
        self,
        trie: Trie,
        matcher: DeviceMatcher | None,
        requests: list[CompiledTargeting],
        context: Tensor,
    ) -> Found:
        """Search with the context `[B, T, model_dim]` inside a trie on its device."""
        verdict = None if matcher is None else matcher.start(requests)
        if matcher is not None and matcher.ready is not None:
            torch.cuda.current_stream().wait_event(matcher.ready)
        keys = self._decoder.project_context(context)
        self._cache = BeamCache(self._shape.config, max(self._shape.plan.widths), keys[0][0])
        prefill = Prefill(keys, [0] * len(context))
        return found_of(beam_search(self, prefill, trie, verdict, self._shape.plan, len(context)))

    def step(
        self, state: list, parents: Tensor | None, tokens: Tensor | None, t: int
    ) -> tuple[Tensor, Tensor]:
        """Score the tokens of one level."""
        if parents is not None:
            self._cache.reorder(parents, length=t)
        logits = self._decoder.step(state, self._cache, tokens, t)
        return logits, logsumexp(logits)


class Prepared:
    """One variant's search for one shape, with its only batch loaded.

    Args:
        trie: on the device.
        matcher: the variant's, or None.
        requests: of the batch; only with a matcher.
        decoder: the weights.
        context: float32 `[B, T, model_dim]` on the device.
        steps: the class of the decoder's steps.
        search: the class of the search.
    """

    def __init__(
        self,
        shape: Shape,
        variant: Variant,
        trie: Trie,
        matcher: DeviceMatcher | None,
        requests: list[CompiledTargeting],
        decoder: Decoder,
        context: Tensor,
        steps: type[StepDecoder] = StepDecoder,
        search: type[StepSearch] = StepSearch,
    ):
        self.shape, self.variant, self.matcher = shape, variant, matcher
        self.requests = requests[: shape.batch]
        self.device = context.device
        self.precision = variant.precision
        if self.device.type == "cpu" and self.precision == "bfloat16":
            self.precision = "float32"
        self._decoder = steps(decoder, shape.config, self.device, self.precision)
        self.search = search(
            self._decoder, trie, matcher, shape.plan, shape.batch, shape.config.num_context_tokens,
            table_bytes=TABLE_BYTES if variant.tables else 0, buckets=(shape.batch,),
        )  # fmt: skip
        self.context = context.to(self._decoder.dtype)

    def find(self) -> Beams:
        """Match and search."""
        if self.matcher is not None:
            self.matcher.start(self.requests)
        return self.search.run(self.context)

    def check(self, plain: Found) -> float:
        """Assert that the search finds what the plain path does; return the share in common."""
        beams = self.find()
        assert beams.faults == [None] * self.shape.batch, beams.faults
        if self.variant.matching == "exact":
            assert_eligible(beams.nodes, self.matcher.words)
        share, difference = overlap(found_of(beams), plain)
        least, most = AGREE[self.precision]
        agree = share >= least and difference <= most
        assert agree, f"{self.variant.name}: shares {share}, scores differ by {difference}"
        return share

    def times(
        self,
        replays: int,
        matching: bool = True,
        warmup_ms: float = WARMUP_MS,
        every_ms: float | None = None,
    ) -> list[float]:
        """Milliseconds of each replay of the loop, an exact matcher's own work before it included.

        Args:
            matching: False for the loop alone, the exact matcher's words there before.
            warmup_ms, every_ms: as `timing.event_times` takes them.
        """
        exact = matching and self.variant.matching == "exact"
        if self.device.type == "cpu":
            return record.time_calls(
                self.find if exact else lambda: self.search.run(self.context), replays, warmup=1
            )
        self.find()
        graph = self.search._graphs[self.shape.batch]

        def run() -> None:
            if exact:
                match_again(self.matcher)
            graph.replay()

        return timing.event_times(run, replays, self.search._stream, warmup_ms, every_ms)


def found_of(beams: Beams) -> Found:
    """A search's result without what it traced."""
    return Found(beams.tokens, beams.scores)


def prepared(
    world: World,
    shape: Shape,
    variant: Variant,
    decoder: Decoder,
    context: Tensor,
    **classes: type,
) -> Prepared:
    """A variant's search in a world; `classes` as `Prepared` takes them."""
    matcher = world.matcher(variant.matching)
    return Prepared(
        shape, variant, world.trie_there, matcher, world.requests, decoder, context, **classes
    )


def latency_rows(
    case: str,
    variant: str,
    shape: Shape,
    times_ms: list[float],
    counts: dict[str, int | float],
    references: dict[str, dict] | None = None,
) -> list[dict]:
    """Rows `latency` and `mfu` of a search; `references` by metric."""
    references = references or {}
    counts = sizes(shape) | counts
    stats = record.quantiles(times_ms)
    if len(times_ms) < 50:
        del stats["p99"]  # too few stand behind it
    used = mfu(shape.config, shape.plan.widths, shape.batch, float(np.mean(times_ms)))
    return [
        record.row(
            case, variant, "latency", "ms", **stats, counts=counts,
            reference=references.get("latency"),
        ),
        record.row(
            case, variant, "mfu", "rate", used, counts=counts, reference=references.get("mfu")
        ),
    ]  # fmt: skip


def sizes(shape: Shape) -> dict[str, int | float]:
    """What a row says of its shape."""
    gflop = flops_per_request(shape.config, shape.plan.widths) / 1e9
    beams = {f"beams_{t}": width for t, width in enumerate(shape.plan.widths)}
    return {
        "batch": shape.batch,
        **beams,
        "kept_sids": shape.plan.num_sids,
        "vocab": shape.config.vocab_size,
        "context": shape.config.num_context_tokens,
        "gflop_per_request": round(gflop, 3),
    }


def free_memory(device: str) -> None:
    """Give back what the last search held."""
    gc.collect()
    if device == "cuda":
        torch.cuda.empty_cache()


def note(text: str) -> None:
    """Say what is measured now, and the time that went by."""
    print(f"{time.perf_counter() - BEGAN:5.0f} s  {text}", flush=True)


def num_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
