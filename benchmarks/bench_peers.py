"""How long does a whole search take, by Grace and by what else one could run with the same weights?

One decoder of random weights, one catalogue of random SIDs, random contexts [B, T, model_dim] that
go straight into the decoder: no encoder is timed for anyone.

- `grace`: Grace's own search.
- `static, eager`, `static, graph`, `static, compiled`: beam search on torch alone, the trie as
  STATIC (Su et al., 2026) describes it; run call by call, replayed as one CUDA graph, and compiled
  by `torch.compile` in mode `reduce-overhead`. Compiling takes longest, so it is done last, for the
  largest case alone; tuning the products as well, mode `max-autotune`, takes minutes a shape.
- `generate, callback`: Hugging Face `generate` as documented: `num_beams`, and a
  `prefix_allowed_tokens_fn` that looks a prefix up in a dict; the model is laid out as T5 and BART.
- `generate, tuned`: `generate` with all that can be had by overriding: a logits processor that
  walks the trie for all rows at once on the device, a model with one context for all beams.

Before anything is timed, all must return the SIDs and scores of Grace's CPU search on a small
model in float32, see `peers.found.assert_same`. At the timed sizes, in bfloat16, each must share at
least MIN_OVERLAP of its SIDs with Grace and differ by at most MAX_DIFFERENCE in the scores of
those: rounding decides the rest. SIDs that are not in the catalogue, or twice in an answer, are
counted there and where a catalogue has fewer SIDs than there are beams.

Times are wall-clock times of one call, from contexts on the device to SIDs and scores on the
device: cross-attention's keys of the context and the wait for the device are in it.

Other engines were looked at (November 2026) and do not run this. FlashRec 0.1.2 searches wide beams
inside a trie, for Qwen3 checkpoints only, without cross-attention. CTranslate2 4.8.5 searches with
encoder-decoders of one vocabulary and one head; its callback is for a beam of one, and what it can
suppress does not depend on the prefix. fairseq 0.12.2 has the callback that `generate` has, and
cannot be imported by Python 3.11 or later. xgrammar, llguidance and outlines make masks and leave
the search to others; STATIC's own code is no package.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

import torch
from torch import Tensor, nn
from transformers import LogitsProcessorList

from benchmarks import record
from benchmarks.kernels.bench_select import random_sids
from benchmarks.kernels.select_variants import Static
from benchmarks.peers import hugging_face
from benchmarks.peers.found import Found, assert_same, count_faults, overlap
from benchmarks.peers.grace_search import captured, grace_beams
from benchmarks.peers.static_decoder import (
    Replayed,
    Search,
    StaticDecoder,
    compiled,
    static_tables,
)
from grace.index.trie import Trie, build_trie
from grace.kernels.tuning import pinned
from grace.model import EncoderDecoder, FeatureSpec, ModelConfig

PAPER = ModelConfig(
    num_levels=4, vocab_size=512, model_dim=1024, num_heads=16, head_dim=128, ffn_dim=4864,
    decoder_layers=3, num_context_tokens=128,
)  # fmt: skip
SMALL = ModelConfig(
    num_levels=4, vocab_size=40, model_dim=48, num_heads=3, head_dim=16, ffn_dim=64,
    decoder_layers=2, num_context_tokens=9,
)  # fmt: skip
ON_ANY_DEVICE = ("grace", "static, eager", "generate, tuned", "generate, callback")
COMPILED = "static, compiled"
ON_GPU = ("static, graph", COMPILED)

TOLERANCE = 1e-4  # of a score in float32
MIN_OVERLAP = 0.9  # of the SIDs of two searches in bfloat16, of which one may keep but 128
MAX_DIFFERENCE = 0.1  # of a score in bfloat16, a sum of L log-probabilities
MIN_SAMPLES_FOR_P99 = 50
BEGAN = time.perf_counter()


@dataclass(frozen=True)
class Setup:
    """A model and a catalogue, and what each search makes of them once."""

    model: EncoderDecoder
    trie: Trie
    device: str

    @cached_property
    def most_children(self) -> tuple[int, ...]:
        return self.trie.most_children

    @cached_property
    def static(self) -> Static:
        vocab_size = self.model.config.vocab_size
        return static_tables(self.trie.sids, self.most_children, vocab_size, self.device)

    @cached_property
    def callback(self) -> Callable[[int, Tensor], Tensor]:
        return hugging_face.prefix_callback(self.trie, self.device)

    @cached_property
    def mask(self) -> hugging_face.TrieMask:
        vocab_size = self.model.config.vocab_size
        return hugging_face.TrieMask(self.trie, self.most_children, vocab_size, self.device)

    def search(self, name: str, widths: Sequence[int], context: Tensor) -> Search:
        """A search by name; those that are captured or compiled are so for contexts like this."""
        decoder, config = self.model.decoder, self.model.config
        if name == "grace":
            return captured(self.model, self.trie, widths[:-1], widths[-1], len(context))
        if name.startswith("static"):
            static = StaticDecoder(decoder, self.static, widths)
            if name == "static, graph":
                return Replayed(static, context)
            return compiled(static) if name == COMPILED else static
        if name == "generate, callback":
            model = hugging_face.StockModel(decoder, config)
            constraint = {"prefix_allowed_tokens_fn": self.callback}
        else:
            model = hugging_face.TunedModel(decoder, config)
            constraint = {"logits_processor": LogitsProcessorList([self.mask])}
        return partial(
            hugging_face.generate, model, beams=max(widths), num_sids=widths[-1], **constraint
        )


@torch.inference_mode()
def main(arguments: Sequence[str] | None = None) -> None:
    """Check that all agree, time them, print and save the result."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--sids", type=int, default=1_000_000, help="random SIDs to draw")
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 16])
    parser.add_argument("--beams", type=int, nargs="+", default=[128, 1024])
    parser.add_argument("--variants", nargs="+", choices=ON_ANY_DEVICE + ON_GPU, metavar="VARIANT")
    parser.add_argument("--seconds", type=float, default=1, help="of timed calls per row")
    parser.add_argument("--least", type=int, default=3, help="timed calls per row")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tiny", action="store_true", help="the small model, to try the script")
    parser.add_argument("--check", action="store_true", help="only assert that all agree")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--write", action="store_true", help="save the result file")
    parser.add_argument("--add", action="store_true", help="keep the file's rows of other cases")
    options = parser.parse_args(arguments)
    names = ON_ANY_DEVICE + (ON_GPU if options.device == "cuda" else ())
    names = [name for name in names if name in (options.variants or names)]

    at_once = [name for name in names if name != COMPILED]
    with pinned():  # small shapes are not timed
        check_small(at_once, options.device, options.seed, (2, 33, 96))
        rows = list(few_sids_rows(at_once, options.device, options.seed))
    try:
        for row in () if options.check else case_rows(names, options):
            rows.append(row)
    finally:  # what is measured stays, even if a later case fails
        record.show("peers", rows)
        if options.write:
            machine = None if options.device == "cuda" else "cpu"
            kept = record.kept_rows("peers", {row["case"] for row in rows}) if options.add else []
            print(record.write("peers", [*kept, *rows], machine, added=options.add))


def case_rows(names: Sequence[str], options: argparse.Namespace) -> Iterator[dict]:
    """Rows of all timed cases; what has to be compiled comes last."""
    config = SMALL if options.tiny else PAPER
    dtype = torch.bfloat16 if options.device == "cuda" else torch.float32
    setup = make_setup(config, options.sids, dtype, options.device, options.seed)
    first: dict[tuple[int, int], tuple[str, Found]] = {}
    at_once = [name for name in names if name != COMPILED]
    for batch in options.batch:
        for beams in options.beams:
            yield from measure_case(setup, at_once, batch, beams, options, first)
    if COMPILED in names:
        check_small([COMPILED], options.device, options.seed, (33,))
        largest = max(options.batch), max(options.beams)
        yield from measure_case(setup, [COMPILED], *largest, options, first)


def make_setup(
    config: ModelConfig, num_sids: int, dtype: torch.dtype, device: str, seed: int
) -> Setup:
    """A model of random weights and a catalogue of random SIDs; both depend on the seed alone."""
    torch.manual_seed(seed)
    spec = FeatureSpec.from_dict(
        {"fields": [{"name": "gender", "kind": "categorical", "values": ["f"]}]}
    )
    model = EncoderDecoder(config, spec).eval().to(device, dtype)
    for module in model.modules():
        if isinstance(module, nn.RMSNorm):
            module.eps = torch.finfo(torch.float32).eps  # otherwise that of the weights' dtype
    trie, _ = build_trie(random_sids(num_sids, config.vocab_size, config.num_levels, seed))
    return Setup(model, trie, device)


def draw_context(setup: Setup, batch: int, seed: int) -> Tensor:
    """[B, T, model_dim], normal, drawn on the CPU."""
    config, weight = setup.model.config, setup.model.decoder.start
    generator = torch.Generator().manual_seed(seed)
    shape = (batch, config.num_context_tokens, config.model_dim)
    return torch.randn(shape, generator=generator).to(weight.device, weight.dtype)


def check_small(names: Sequence[str], device: str, seed: int, all_beams: Sequence[int]) -> None:
    """Assert that all return what Grace's CPU search does, in float32 on a small model."""
    on_cpu = make_setup(SMALL, 20_000, torch.float32, "cpu", seed)
    setup = make_setup(SMALL, 20_000, torch.float32, device, seed)
    for beams in all_beams:
        widths = tuple(min(beams, size) for size in on_cpu.trie.level_sizes)
        context = draw_context(on_cpu, 3, seed)
        truth = grace_beams(on_cpu.model, on_cpu.trie, context, widths[:-1], widths[-1])
        kept = [*truth.entered_scores[1:], truth.scores]
        cuts = torch.stack([scores.min(1).values for scores in kept], 1)
        for name in names:
            search = setup.search(name, widths, context.to(device))
            found = search(context.to(device))
            found = Found(found.sids.cpu(), found.scores.cpu())
            assert count_faults(found, setup.trie)[1:] == (0, 0), name
            expected = Found(truth.tokens, truth.scores)
            assert_same(name, found, expected, cuts, on_cpu.model.decoder, context, TOLERANCE)
    print(f"float32, small: {', '.join(names)} agree")


def few_sids_rows(names: Sequence[str], device: str, seed: int) -> Iterator[dict]:
    """What is returned where 128 beams look for 60 SIDs, in float32 on a small model."""
    setup = make_setup(SMALL, 60, torch.float32, device, seed)
    context = draw_context(setup, 1, seed)
    widths = (1, min(128, SMALL.vocab_size), *[128] * (SMALL.num_levels - 1))
    for name in names:
        if name in ON_ANY_DEVICE:
            found = setup.search(name, widths, context)(context)
            yield from fault_rows("60 SIDs, 128 beams", name, found, setup.trie)


def measure_case(
    setup: Setup,
    names: Sequence[str],
    batch: int,
    beams: int,
    options: argparse.Namespace,
    all_first: dict[tuple[int, int], tuple[str, Found]],
) -> Iterator[dict]:
    """Rows of one batch size and width: every search checked against the first, then timed.

    `all_first` holds, by case, the first search's name and what it found; it gets this one's.
    """
    config = setup.model.config
    case = f"batch {batch}, {beams} beams"
    possible = [config.vocab_size**level for level in range(config.num_levels + 1)]
    widths = tuple(min(beams, count) for count in possible)
    context = draw_context(setup, batch, options.seed)
    for name in names:
        print(f"{time.perf_counter() - BEGAN:5.0f} s  {case}: {name}", flush=True)
        try:
            search = setup.search(name, widths, context)
            found = search(context)
            found = Found(found.sids.cpu(), found.scores.cpu())
            times_ms = time_search(search, context, options.seconds, options.least)
        except torch.OutOfMemoryError as error:
            print(f"{case}: {name}: {error}")
            yield record.row(case, name, "out of memory", "count", 1)
            continue
        finally:
            search = None  # what it captured or keeps is freed before the next one
            if setup.device == "cuda":
                torch.cuda.empty_cache()
        other, wanted = all_first.setdefault((batch, beams), (name, found))
        share, difference = overlap(found, wanted)
        agree = share >= MIN_OVERLAP and difference <= MAX_DIFFERENCE
        assert agree, f"{case}: {name} shares {share} with {other}, scores differ {difference}"
        counts = {"sids": len(setup.trie.sids), "largest_score_difference": difference}
        yield record.row(case, name, "latency", "ms", **quantiles(times_ms), counts=counts)
        yield record.row(case, name, f"overlap with {other}", "rate", share, counts=counts)
        yield from fault_rows(case, name, found, setup.trie)


def time_search(search: Search, context: Tensor, seconds: float, least: int) -> list[float]:
    """Milliseconds of as many calls as fit the time, at most 300; it has been called before."""

    def call() -> None:
        search(context)
        if context.is_cuda:
            torch.cuda.synchronize()

    start = time.perf_counter()
    call()
    repeats = int(seconds / (time.perf_counter() - start))
    return record.time_calls(call, min(300, max(least, repeats)), warmup=0)


def quantiles(times_ms: Sequence[float]) -> dict[str, float]:
    """As `record.quantiles`, without a 99th percentile where too few calls stand behind it."""
    found = record.quantiles(times_ms)
    if len(times_ms) < MIN_SAMPLES_FOR_P99:
        del found["p99"]
    return found


def fault_rows(case: str, name: str, found: Found, trie: Trie) -> Iterator[dict]:
    """Rows that count what no answer should hold."""
    returned, invalid, repeated = count_faults(found, trie)
    counts = {"returned": returned}
    yield record.row(case, name, "invalid_sids", "count", invalid, counts=counts)
    yield record.row(case, name, "repeated_sids", "count", repeated, counts=counts)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))  # what is measured is written
    main()
