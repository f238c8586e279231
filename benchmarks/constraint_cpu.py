"""What do the constraint and the selection of one decode step cost on a CPU, at 256 beams?

One request, 256 live beams on random prefixes of t tokens, random logits, and the 256 best
continuations that the catalogue (`valid`) or the request's targeting (`exact`) allows:

- `native`: `grace.kernels.constrained_select`, which visits the children of each beam in the index.
- `transformers`: its own `PrefixConstrainedLogitsProcessor`, unmodified, over a dict from prefix to
  allowed tokens (of the eligible SIDs alone in exact mode), then `torch.topk`.

Both get the same logits and must return the same continuations, which is asserted before anything
is timed. `constraint and selection` starts from normalised rows: log-probabilities for
transformers, logits and their logsumexp for Grace. `with normalisation` has log-softmax and
logsumexp in it. What precedes decoding is in neither, and stands in rows of its own: the matcher's
words for one request, and the dict of its eligible SIDs. Torch runs in one thread.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import median

import numpy as np
import torch
from torch import Tensor
from transformers import PrefixConstrainedLogitsProcessor

import grace
from benchmarks import record
from benchmarks.filter import SCHEMA
from grace.demo.synthetic import demo_catalog, synthetic_requests
from grace.kernels.constrained_select import constrained_select
from grace.kernels.logsumexp import logsumexp

BEAMS = 256
TOLERANCE = 1e-4  # of scores: transformers sums float32 log-probabilities


@dataclass(frozen=True)
class Step:
    """One decode step of one request.

    Attributes:
        prefixes: int64 [M, t], distinct.
        nodes: int64 [1, M], their trie nodes.
        scores: float32 [1, M].
        logits: float32 [1, M, V].
        words: int32 [S] of the matcher, or None.
        allowed: prefix → tokens that may follow it.
    """

    prefixes: Tensor
    nodes: Tensor
    scores: Tensor
    logits: Tensor
    words: Tensor | None
    allowed: dict[tuple[int, ...], list[int]]


def main() -> None:
    """Check that both agree, time them, write the result file."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--sids", type=int, nargs="+", default=[10_000, 100_000])
    parser.add_argument("--vocab", type=int, nargs="+", default=[256, 512])
    parser.add_argument("--repeats", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(1)

    rows = []
    for num_sids in options.sids:
        for vocab in options.vocab:
            rows += measure_catalogue(num_sids, vocab, options.repeats, options.seed)
    record.show("constraint_cpu", rows)
    print(record.write("constraint_cpu", rows, machine="cpu"))


def measure_catalogue(num_ads: int, vocab: int, repeats: int, seed: int) -> Iterator[dict]:
    """Rows of one catalogue: every step but the first, valid and exact."""
    index = grace.build_index(demo_catalog(num_ads, seed, num_codes=vocab), SCHEMA)
    raw = synthetic_requests(1, num_ads, seed)[0]
    request = index.compile(raw["attributes"], raw["at"])
    words = index.match("exact", [request]).words
    eligible = words[index.trie.first_leaf :].numpy() & 1 != 0
    catalogue = f"{num_ads:,} ads, V {vocab}"
    counts = {"sids": index.num_sids, "eligible_sids": int(eligible.sum())}

    def prepared(variant: str, fn: Callable[[], object]) -> dict:
        times_ms = record.time_calls(fn, max(3, repeats // 10), warmup=1)
        return record.row(
            catalogue, variant, "before decoding", "ms", **record.quantiles(times_ms), counts=counts
        )

    yield prepared("exact, native", lambda: index.match("exact", [request]))
    yield prepared("exact, transformers", lambda: prefix_dict(index.sids[eligible]))
    for mode, mode_words, sids in (
        ("valid", None, index.sids),
        ("exact", words, index.sids[eligible]),
    ):
        allowed = prefix_dict(sids)
        for t in range(1, index.num_levels):
            step = random_step(index, sids, t, vocab, mode_words, allowed, seed)
            check_agreement(index, step)
            yield from measure_step(index, step, f"{catalogue}, step {t}", mode, repeats)


def measure_step(
    index: grace.Index, step: Step, case: str, mode: str, repeats: int
) -> Iterator[dict]:
    """Rows of one step: both variants and how many times faster the first is."""
    log_probs, logsumexp = log_softmax(step), normaliser(step)
    children = np.diff(index.trie.child_offsets.numpy())[step.nodes[0].numpy()]
    counts = {"beams": BEAMS, "children": int(children.sum())}
    metrics = {
        "constraint and selection": (
            lambda: select_native(index, step, logsumexp),
            lambda: select_transformers(step, log_probs),
        ),
        "with normalisation": (
            lambda: select_native(index, step, normaliser(step)),
            lambda: select_transformers(step, log_softmax(step)),
        ),
    }
    for metric, (native, transformers) in metrics.items():
        native_ms = record.time_calls(native, repeats)
        transformers_ms = record.time_calls(transformers, repeats)
        for variant, times_ms in (("native", native_ms), ("transformers", transformers_ms)):
            stats = record.quantiles(times_ms)
            yield record.row(case, f"{mode}, {variant}", metric, "ms", **stats, counts=counts)
        ratio = median(transformers_ms) / median(native_ms)
        yield record.row(case, f"{mode}, speedup", metric, "ratio", ratio)


def select_native(
    index: grace.Index, step: Step, logsumexp: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """(parents, tokens, scores) of the best continuations, by Grace."""
    chosen = constrained_select(
        step.logits,
        logsumexp,
        step.scores,
        step.nodes,
        index.trie.child_offsets,
        index.trie.child_tokens,
        step.words,
        BEAMS,
    )
    return chosen.parents[0], chosen.tokens[0], chosen.scores[0]


def select_transformers(step: Step, log_probs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The same by transformers, in the order of its beam search: mask, add scores, topk."""
    processor = PrefixConstrainedLogitsProcessor(
        lambda _, prefix: step.allowed[tuple(prefix.tolist())], BEAMS
    )
    total = processor(step.prefixes, log_probs) + step.scores[0, :, None]
    scores, chosen = torch.topk(total.view(-1), BEAMS)
    vocab = log_probs.shape[-1]
    return chosen // vocab, chosen % vocab, scores


def log_softmax(step: Step) -> Tensor:
    """float32 [M, V], what transformers' processor takes."""
    return torch.log_softmax(step.logits[0], dim=-1)


def normaliser(step: Step) -> Tensor:
    """float64 [1, M], what `constrained_select` takes."""
    return logsumexp(step.logits)


def check_agreement(index: grace.Index, step: Step) -> None:
    """Assert that both choose the same continuations, but for ties closer than `TOLERANCE`."""
    log_probs = log_softmax(step)
    native = select_native(index, step, normaliser(step))
    other = select_transformers(step, log_probs)
    torch.testing.assert_close(native[2], other[2], rtol=0, atol=TOLERANCE)
    for parents, tokens, scores in (native, other):
        assert len(set(zip(parents.tolist(), tokens.tolist(), strict=True))) == BEAMS
        theirs = log_probs[parents, tokens] + step.scores[0, parents]
        torch.testing.assert_close(scores, theirs, rtol=0, atol=TOLERANCE)
        for parent, token in zip(parents.tolist(), tokens.tolist(), strict=True):
            assert token in step.allowed[tuple(step.prefixes[parent].tolist())]


def random_step(
    index: grace.Index,
    sids: np.ndarray,
    t: int,
    vocab: int,
    words: Tensor | None,
    allowed: dict[tuple[int, ...], list[int]],
    seed: int,
) -> Step:
    """Beams on random prefixes of t tokens of `sids`, int32 [n, L]."""
    draw = np.random.default_rng([seed, t])
    distinct = np.unique(sids[:, :t], axis=0)
    prefixes = draw.choice(distinct, BEAMS, replace=False)
    valid = np.unique(index.sids[:, :t], axis=0)
    places = {tuple(prefix): place for place, prefix in enumerate(valid.tolist())}
    first = int(index.trie.level_offsets[t])
    nodes = [first + places[tuple(prefix)] for prefix in prefixes.tolist()]
    return Step(
        prefixes=torch.from_numpy(prefixes.astype(np.int64)),
        nodes=torch.tensor([nodes]),
        scores=torch.from_numpy(-draw.exponential(4, (1, BEAMS)).astype(np.float32)),
        logits=torch.from_numpy(draw.normal(0, 2, (1, BEAMS, vocab)).astype(np.float32)),
        words=words,
        allowed=allowed,
    )


def prefix_dict(sids: np.ndarray) -> dict[tuple[int, ...], list[int]]:
    """Prefix → the tokens after it, for all prefixes of SIDs, int32 [n, L]."""
    allowed: dict[tuple[int, ...], dict[int, None]] = {}
    for sid in sids.tolist():
        for t, token in enumerate(sid):
            allowed.setdefault(tuple(sid[:t]), {})[token] = None
    return {prefix: list(tokens) for prefix, tokens in allowed.items()}


if __name__ == "__main__":
    main()
