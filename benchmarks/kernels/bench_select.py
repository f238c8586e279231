"""What do normalising, constraining and selecting cost on a GPU, all steps of a search, no model?

A catalogue of random SIDs and random logits for B requests, the same for all variants:

- `grace`: `grace.kernels.logsumexp` and `constrained_select`. `grace, words` also reads a matcher's
  word for every child, here of random bits that let seven of eight through.
- `dense mask`: log-softmax, a mask of all V tokens per beam from the same trie, `torch.topk` over
  all beams' tokens.
- `static`: what STATIC (Su et al., 2026) describes, in torch: log-softmax, dense tables for the
  first two tokens, for later ones a gather of as many transitions per beam as the level's largest
  node has, then `torch.topk`.

Before anything is timed, every step of every variant starts from the same beams, with Grace's
normaliser in place of log-softmax, and must return the same scores and, above the cut, the same
prefixes; Grace must equal its plain torch reference bit for bit. `graph` is a replay of one CUDA
graph of all steps, timed by events on the device; `eager` is the wall-clock time of the calls, the
wait for the device included. `--check` stops before timing, and runs without a GPU, too, if
TRITON_INTERPRET=1 is set and the catalogue small.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor

from benchmarks import record
from benchmarks.kernels import timing
from benchmarks.kernels.select_variants import DenseMask, Static, Variant
from grace.index.trie import Trie, build_trie
from grace.kernels.constrained_select import Selection, Workspace, constrained_select
from grace.kernels.logsumexp import logsumexp


class Grace:
    """Grace's own kernels; `words` is a matcher's verdict or None."""

    def __init__(self, trie: Trie, widths: tuple[int, ...], batch: int, words: Tensor | None):
        self._trie = trie
        self._words = words
        steps = zip(widths[:-1], widths[1:], trie.most_children, strict=True)
        self._workspace = Workspace.for_steps(batch, steps, trie.child_tokens.device)

    def step(
        self, t: int, logits: Tensor, scores: Tensor, nodes: Tensor, width: int, backend: str
    ) -> Selection:
        """One step; nodes and scores are [B, M]."""
        return constrained_select(
            logits, logsumexp(logits), scores, nodes, self._trie.child_offsets,
            self._trie.child_tokens, self._words, width, backend,
            max_children=self._trie.most_children[t], workspace=self._workspace,
        )  # fmt: skip

    def search(self, logits: list[Tensor], widths: tuple[int, ...]) -> tuple[Tensor, Tensor]:
        """All steps: (nodes, scores), int64 and float32 [B, K]."""
        batch = logits[0].shape[0]
        nodes = torch.zeros(batch, 1, dtype=torch.int64, device=logits[0].device)
        scores = torch.zeros(batch, 1, device=logits[0].device)
        for t, width in enumerate(widths[1:]):
            chosen = self.step(t, logits[t], scores, nodes, width, "auto")
            nodes, scores = chosen.nodes, chosen.scores
        return nodes, scores


def main() -> None:
    """Check that all agree, time them, write the result file."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--sids", type=int, default=30_000_000, help="random SIDs to draw")
    parser.add_argument("--vocab", type=int, default=512)
    parser.add_argument("--levels", type=int, default=4)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--beams", type=int, nargs="+", default=[512, 1024])
    parser.add_argument("--repeats", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--profile", action="store_true", help="print the time of each kernel")
    parser.add_argument("--check", action="store_true", help="only assert that all agree")
    options = parser.parse_args()

    sids = random_sids(options.sids, options.vocab, options.levels, options.seed)
    trie, _ = build_trie(sids)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    on_device = trie.to(device)
    words = random_words(trie.num_nodes, options.seed, device)
    static = Static.build(sids, options.vocab, on_device.most_children, device)
    dense = DenseMask(on_device.child_offsets, on_device.child_tokens, on_device.most_children)
    rows = []
    for beams in options.beams:
        widths = plan(trie, beams)
        generator = torch.Generator(device).manual_seed(options.seed)
        logits = [
            torch.randn(
                options.batch, width, options.vocab, generator=generator, device=device
            ).mul_(2)
            for width in widths[:-1]
        ]
        graces = {
            "grace": Grace(on_device, widths, options.batch, None),
            "grace, words": Grace(on_device, widths, options.batch, words),
        }
        others = {"dense mask": dense, "static": static}
        check(graces, others, logits, widths)
        if options.check:
            print(f"{beams} beams: all agree")
            continue
        counts = {"sids": len(sids), "batch": options.batch, "vocab": options.vocab}
        case = f"{options.levels} steps, {beams} beams"
        rows += measure(case, graces | others, logits, widths, options.repeats, counts)
        if options.profile:
            print(profile(lambda: graces["grace"].search(logits, widths)))  # noqa: B023
        rows += measure_steps(case, graces["grace"], logits, widths, options.repeats)
    if rows:
        record.show("select", rows)
        print(record.write("select", rows))


def random_sids(num: int, vocab: int, levels: int, seed: int) -> np.ndarray:
    """int32 [N, L], distinct and ascending; N is at most `num`."""
    places = vocab ** np.arange(levels - 1, -1, -1, dtype=np.int64)
    packed = np.unique(np.random.default_rng(seed).integers(0, vocab**levels, num))
    sids = np.empty((len(packed), levels), np.int32)
    for level, place in enumerate(places):
        sids[:, level] = packed // place % vocab
    return sids


def random_words(num_nodes: int, seed: int, device: str) -> Tensor:
    """int32 [S], each bit set with seven chances of eight."""
    generator = torch.Generator(device).manual_seed(seed)
    words = torch.zeros(num_nodes, dtype=torch.int32, device=device)
    for _ in range(3):  # a bit stays clear where three fair draws leave it so
        draw = torch.randint(
            -(2**31), 2**31, (num_nodes,), generator=generator, device=device, dtype=torch.int64
        )
        words |= draw.to(torch.int32)
    return words


def plan(trie: Trie, beams: int) -> tuple[int, ...]:
    """Beams entering each step, and the SIDs kept: no more than there are prefixes."""
    return tuple(min(beams, size) for size in trie.level_sizes)


def check(
    graces: dict[str, Grace],
    others: dict[str, Variant],
    logits: list[Tensor],
    widths: tuple[int, ...],
) -> None:
    """Assert that all select the same, step by step from the same beams."""
    for name, variant in graces.items():
        nodes = torch.zeros(logits[0].shape[0], 1, dtype=torch.int64, device=logits[0].device)
        scores = torch.zeros(nodes.shape, device=nodes.device)
        for t, width in enumerate(widths[1:]):
            chosen = variant.step(t, logits[t], scores, nodes, width, "triton")
            expected = variant.step(t, logits[t], scores, nodes, width, "reference")
            for field, tensor in vars(expected).items():
                assert torch.equal(getattr(chosen, field), tensor), (name, t, field)
            if name == "grace":
                log_probs = (logits[t].double() - logsumexp(logits[t])[..., None]).float()
                for other in others.values():
                    other_scores, found = other.step(t, log_probs, scores, nodes, width)
                    named = t + 2 < len(widths) or other.names_leaves
                    assert_same_beams(chosen, other_scores, found if named else None)
            nodes, scores = chosen.nodes, chosen.scores


def assert_same_beams(chosen: Selection, scores: Tensor, nodes: Tensor | None) -> None:
    """Equal scores; equal nodes above the last score, at which `torch.topk` picks as it likes.

    nodes is None where a variant does not tell leaves apart.
    """
    assert torch.equal(chosen.scores, scores)
    if nodes is None:
        return
    inside = scores > scores[:, -1:]
    for one, other in zip(chosen.nodes.where(inside, -1), nodes.where(inside, -1), strict=True):
        assert torch.equal(one.sort().values, other.sort().values)


def measure(
    case: str,
    variants: dict[str, Grace | Variant],
    logits: list[Tensor],
    widths: tuple[int, ...],
    repeats: int,
    counts: dict[str, int],
) -> Iterator[dict]:
    """Rows of all variants, replayed and eager."""
    for name, variant in variants.items():

        def run(variant: Grace | Variant = variant) -> object:
            return variant.search(logits, widths)

        times_ms = timing.replay_times(run, repeats)
        yield record.row(
            case, f"{name}, graph", "latency", "ms", **record.quantiles(times_ms), counts=counts
        )

        def wait(run: Callable[[], object] = run) -> None:
            run()
            torch.cuda.synchronize()

        times_ms = record.time_calls(wait, max(200, repeats // 2))
        yield record.row(
            case, f"{name}, eager", "latency", "ms", **record.quantiles(times_ms), counts=counts
        )


def measure_steps(
    case: str, grace: Grace, logits: list[Tensor], widths: tuple[int, ...], repeats: int
) -> Iterator[dict]:
    """Rows of Grace's steps alone and of the normalisers alone, each in a graph of its own."""
    nodes = torch.zeros(logits[0].shape[0], 1, dtype=torch.int64, device=logits[0].device)
    scores = torch.zeros(nodes.shape, device=nodes.device)
    for t, width in enumerate(widths[1:]):
        fixed = (t, logits[t], scores, nodes, width, "auto")
        times_ms = timing.replay_times(lambda fixed=fixed: grace.step(*fixed), repeats)
        yield record.row(case, f"grace, step {t}", "latency", "ms", **record.quantiles(times_ms))
        chosen = grace.step(*fixed)
        nodes, scores = chosen.nodes, chosen.scores
    times_ms = timing.replay_times(lambda: [logsumexp(columns) for columns in logits], repeats)
    yield record.row(case, "grace, normalisers", "latency", "ms", **record.quantiles(times_ms))


def profile(fn: Callable[[], object], calls: int = 20) -> str:
    """A table of the kernels of `fn` and their time on the device, over several calls."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        for _ in range(calls):
            fn()
        torch.cuda.synchronize()
    return profiler.key_averages().table(sort_by="device_time_total", row_limit=20)


if __name__ == "__main__":
    with torch.inference_mode():
        main()
