"""Searches over static memory on a CPU, against brute force and against the plain module."""

import threading

import numpy as np
import oracle
import pytest
import torch
from decode_cases import (
    TOLERANCES,
    FixedLogits,
    Search,
    assert_agree,
    assert_identical,
    assert_same_beams,
    context_of,
    index_of,
    model_of,
    plan_of,
)
from device_cases import AT, compiled, place_index, place_requests
from harness import UNION_MODES, build, examples, union_matcher
from hypothesis import given
from hypothesis import strategies as st
from strategies import Case

from grace.decode import BeamPlan, beam_search
from grace.decode.beams import Beams
from grace.decode.generator import Prefill
from grace.decode.step_search import BUCKETS, fitting_buckets
from grace.errors import ConfigError
from grace.index import MATCHERS
from grace.index.on_device import DeviceIndex
from grace.model.beam_cache import BeamCache
from grace.model.encoder_decoder import DecodeBuffers
from grace.model.step_decoder import PRECISIONS

MODES = [matching for matching in MATCHERS if matching != "off"]
EVERYONE = ("valid", *UNION_MODES, "exact")
SMALL = {"model_dim": 20, "num_heads": 3, "head_dim": 8, "ffn_dim": 24, "num_context_tokens": 7}
FAULT = "the model's logits at step {} hold NaN or +inf"

models = st.fixed_dictionaries({
    "model_dim": st.sampled_from((4, 12, 33)),  # the norm of one number is little but its sign
    "num_heads": st.sampled_from((1, 3, 8)),
    "head_dim": st.sampled_from((4, 32, 50)),
    "ffn_dim": st.sampled_from((1, 17)),
    "decoder_layers": st.integers(1, 3),
    "num_context_tokens": st.sampled_from((1, 9)),
    "spare_vocab": st.sampled_from((0, 1, 60)),
})  # fmt: skip


class PlainGenerator:
    """A model's own `decode`, given a context instead of features."""

    def __init__(self, model, batch):
        self._model, self._batch = model, batch

    @torch.no_grad()
    def start(self, context):
        key_values = self._model.decoder.project_context(context)
        return Prefill(
            DecodeBuffers(key_values, BeamCache(self._model.config, 1, key_values[0][0])),
            [0] * self._batch,
        )

    def step(self, state, parents, tokens, t):
        return self._model.decode(state, parents, tokens, t)


def plain_search(index, model, plan, matching, requests, context):
    """`beam_search` with the plain module under `Index.match`."""
    generator = PlainGenerator(model, len(requests))
    prefill, verdict = generator.start(context), index.match(matching, requests)
    return beam_search(generator, prefill, index.trie, verdict, plan, len(requests))


@torch.no_grad()
def logits_by_prefix(model, context, sids):
    """Every prefix of the catalogue → float32 `[V]`, by teacher forcing."""
    whole = torch.tensor(sids, dtype=torch.int64)[None]
    logits = model.decoder(model.decoder.project_context(context[None]), whole)[0].numpy()
    return {tuple(sid[:t]): rows[t] for sid, rows in zip(sids, logits, strict=True)
            for t in range(len(sid))}  # fmt: skip


def brute_force(case, index, model, plan, matching, context, number) -> Beams:
    """The oracle's search for the first requests of a case, in the form of `Beams`."""
    sids = sorted({tuple(ad["sid"]) for ad in case.ads})
    numbers = {p: n for n, p in enumerate(
        sorted(oracle.valid_prefixes(case.ads), key=lambda prefix: (len(prefix), prefix))
    )}  # fmt: skip
    union = union_matcher(case, matching=matching) if matching in UNION_MODES else None
    widths = (*plan.widths, plan.num_sids)
    nodes = [torch.full((number, width), -1) for width in widths]
    scores = [torch.full((number, width), -torch.inf) for width in widths]
    tokens = torch.zeros(number, plan.num_sids, index.num_levels, dtype=torch.int64)
    for b, request in enumerate(case.requests[:number]):
        allowed = oracle.allowed_prefixes(case.ads, request, case.schema, matching, union)
        if () not in allowed:
            continue
        logits = logits_by_prefix(model, context[b], sids)
        steps = oracle.beam_search(logits.__getitem__, plan.widths, plan.num_sids, allowed)
        for level, beams in enumerate([[((), np.float32(0))], *steps]):
            for slot, (prefix, score) in enumerate(beams):
                nodes[level][b, slot], scores[level][b, slot] = numbers[prefix], float(score)
        for slot, (sid, _) in enumerate(steps[-1]):
            tokens[b, slot] = torch.tensor(sid)
    *entered, last = nodes
    *entered_scores, best = scores
    return Beams(tokens, last, best, [None] * number, entered, entered_scores)


@pytest.mark.parametrize("matching", EVERYONE)
@examples(0.5)
@given(
    seed=st.integers(0, 1 << 20), num_levels=st.integers(1, 6), vocab=st.sampled_from((2, 5, 40)),
    shape=st.sampled_from(("uniform", "few", "shared", "dense", "one")), width=st.integers(1, 40),
    sizes=models,
)  # fmt: skip
def test_finds_what_brute_force_finds(matching, seed, num_levels, vocab, shape, width, sizes):
    case = Case(seed=seed, num_levels=num_levels, vocab=vocab, num_ads=1 + seed % 120, shape=shape,
                num_requests=3, rule_rate=0.4)  # fmt: skip
    index = build(case)
    requests = compiled(index, case.requests)
    model, plan = model_of(index, seed, **sizes), plan_of(index.trie, width, 1 + seed % 50)
    search = Search(index, model, plan, "cpu", matching)
    for number in (3, 1):
        context = context_of(model, number, seed)
        found = search.run(requests[:number], context)
        wanted = brute_force(case, index, model, plan, matching, context, number)
        assert_agree(index.trie, found, wanted, 1e-4)


@pytest.mark.parametrize("matching", EVERYONE)
@examples(0.5)
@given(seed=st.integers(0, 1 << 20), sizes=models, width=st.sampled_from((1, 33, 200)))
def test_finds_what_the_plain_module_finds(matching, seed, sizes, width):
    """Batches of different sizes one after the other, steps that grow and shrink."""
    index, requests = index_of(seed, num_levels=1 + seed % 8, vocab=(3, 20, 130)[seed % 3])
    model = model_of(index, seed, **sizes)
    draw = np.random.default_rng(seed)
    widths = (1, *draw.integers(1, width + 1, index.num_levels - 1).tolist())
    plan = BeamPlan(widths, width).limited(index.level_sizes)
    search = Search(index, model, plan, "cpu", matching, max_batch=9)
    for number in (4, 1, 9):
        some, context = requests[-number:], context_of(model, number, number)
        found = search.run(some, context)
        wanted = plain_search(index, model, plan, matching, some, context)
        assert_agree(index.trie, found, wanted, 1e-4)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_less_precision_is_still_near(precision, monkeypatch):
    monkeypatch.setattr("grace.model.projection.LEAST_FP8_FLOPS", 1)
    for seed in range(4):
        index, requests = index_of(seed, num_levels=4, vocab=9)
        model, plan = model_of(index, seed, **SMALL), plan_of(index.trie, 33)
        context = context_of(model, 4, seed)
        found = Search(index, model, plan, "cpu", "exact", precision).run(requests[:4], context)
        wanted = plain_search(index, model, plan, "exact", requests[:4], context)
        tolerance = {"float8": 0.5}.get(precision, TOLERANCES[precision])
        assert_agree(index.trie, found, wanted, tolerance)


def test_contexts_of_their_own_length():
    index, requests = index_of(1, num_levels=4, vocab=9)
    model, plan = model_of(index, **SMALL), plan_of(index.trie, 33)
    search = Search(index, model, plan, "cpu", ragged=True)
    context, lengths = context_of(model, 4), torch.tensor([7, 1, 4, 6], dtype=torch.int32)
    found = search.run(requests[:4], context, lengths)
    for b, length in enumerate(lengths.tolist()):
        alone = plain_search(
            index, model, plan, "exact", requests[b : b + 1], context[b : b + 1, :length]
        )
        assert_agree(index.trie, _only(found, b), alone, 1e-4)


def _only(beams, b):
    one = slice(b, b + 1)
    return Beams(
        beams.tokens[one], beams.nodes[one], beams.scores[one], beams.faults[one],
        [nodes[one] for nodes in beams.entered], [scores[one] for scores in beams.entered_scores],
    )  # fmt: skip


@pytest.mark.parametrize("levels", range(6))
@pytest.mark.parametrize("precision", PRECISIONS)
def test_prefix_tables_change_rounding_alone(levels, precision, monkeypatch):
    """Tables of tokens alone, and of the first levels of the trie up to all of them."""
    monkeypatch.setattr("grace.model.projection.LEAST_FP8_FLOPS", 1)
    index, requests = index_of(levels, num_levels=4, vocab=9)
    model, plan = model_of(index, **SMALL), plan_of(index.trie, 33)
    config, size = model.config, 4 if precision == "float32" else 2
    width = config.num_heads * config.head_dim
    tokens = (1 + 3 * config.vocab_size) * 3 * width
    rows = sum(index.level_sizes[: min(levels, 4)]) * (config.model_dim + width)
    search = Search(
        index, model, plan, "cpu", "exact", precision, table_bytes=size * (tokens + rows)
    )
    tables = search.search.tables
    assert len(tables.levels) == min(levels, 4)
    assert tables.num_bytes == size * (tokens + rows)
    for number in (4, 1):
        context = context_of(model, number)
        found = search.run(requests[:number], context)
        plain = Search(index, model, plan, "cpu", "exact", precision)
        wanted = plain.run(requests[:number], context)
        assert_agree(index.trie, found, wanted, TOLERANCES[precision])
    less = size * tokens - 1
    assert Search(index, model, plan, "cpu", table_bytes=less).search.tables is None


# ---- given logits ----------------------------------------------------------------------------


@pytest.mark.parametrize("matching", MATCHERS)
@pytest.mark.parametrize("style", ["smooth", "coarse", "holes"])
def test_garbage_in_buffers_changes_nothing(matching, style):
    index, requests = index_of(3, num_levels=3, vocab=9)
    plan = plan_of(index.trie, 17)
    there = DeviceIndex(index, "cpu", matching)
    if there.matcher is not None:
        there.matcher.start(requests[:6])
    results = []
    for _ in range(2):
        fixed = FixedLogits(there.trie, plan, 6, there.matcher, style)
        fixed.poison()
        fixed.enqueue()
        results.append(fixed.results())
        fixed.poison()
        fixed.enqueue()
        results.append(fixed.results())
    for other in results[1:]:
        assert_identical(other, results[0])


# ---- requests that fail or find nothing ------------------------------------------------------


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_a_bad_context_fails_alone(precision, bad):
    index, requests = index_of(2, num_levels=3, vocab=9)
    model, plan = model_of(index, **SMALL), plan_of(index.trie, 17)
    search = Search(index, model, plan, "cpu", "valid", precision)
    context = context_of(model, 4)
    clean = search.run(requests[:4], context)
    broken = context.clone()
    broken[1, 3, 2] = bad
    found = search.run(requests[:4], broken)
    assert found.faults == [None, FAULT.format(0), None, None]
    assert (found.nodes[1] == -1).all()
    assert (found.scores[1] == -torch.inf).all()
    assert_same_beams(found, clean, [0, 2, 3])
    assert_same_beams(search.run(requests[:4], context), clean)


@pytest.mark.parametrize("step", range(3))
@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_a_bad_weight_fails_whoever_comes_by(step, bad):
    """A request that nothing is eligible for asks for no logits, so it does not fail."""
    index = place_index()
    model, plan = model_of(index, **SMALL), plan_of(index.trie, 17)
    with torch.no_grad():
        model.decoder.heads[step].bias[2] = bad
    nothing = index.compile({"place": ["nowhere"]}, AT)
    some = place_requests(index, (300, 400))
    found = Search(index, model, plan, "cpu").run([some[0], nothing, some[1]], context_of(model, 3))
    assert found.faults == [FAULT.format(step), None, FAULT.format(step)]
    assert (found.nodes == -1).all()


def test_one_token_that_is_nan_fails_those_who_keep_it():
    index = place_index()
    model, plan = model_of(index, **SMALL), plan_of(index.trie, 2)
    some = place_requests(index, (300, 350, 400, 380))
    context = context_of(model, 4)
    clean = Search(index, model, plan, "cpu").run(some, context)
    first = index.trie.child_tokens[clean.entered[1] - 1]
    token = int(first[0, 0])
    with torch.no_grad():
        model.decoder.tokens[0].weight[token] = torch.nan
    found = Search(index, model, plan, "cpu").run(some, context)
    hit = ((first == token) & (clean.entered_scores[1] > -torch.inf)).any(1).tolist()
    assert found.faults == [FAULT.format(1) if fails else None for fails in hit]
    spared = [b for b, fails in enumerate(hit) if not fails]
    assert_same_beams(found, clean, spared)


def test_infinitely_unlikely_tokens_are_never_chosen():
    index, requests = index_of(2, num_levels=3, vocab=9)
    model, plan = model_of(index, **SMALL), plan_of(index.trie, 1000)
    with torch.no_grad():
        model.decoder.heads[1].bias[::2] = -torch.inf
    context = context_of(model, 3)
    found = Search(index, model, plan, "cpu", "valid").run(requests[:3], context)
    assert found.faults == [None] * 3
    alive = found.scores > -torch.inf
    assert (found.tokens[..., 1][alive] % 2 == 1).all()
    odd = (index.trie.expand()[:, 1] % 2 == 1).sum()
    assert alive.sum(1).tolist() == [odd] * 3
    with torch.no_grad():
        model.decoder.heads[0].bias[:] = -torch.inf
    dead = Search(index, model, plan, "cpu", "valid").run(requests[:3], context)
    assert dead.faults == [None] * 3
    assert (dead.nodes == -1).all()


@pytest.mark.parametrize("matching", MODES)
def test_requests_without_an_eligible_ad_among_others(matching):
    index = place_index()
    model, plan = model_of(index, **SMALL), plan_of(index.trie, 24)
    nothing = index.compile({"place": ["nowhere"]}, AT)
    some = place_requests(index, (300, 200, 400))
    search, context = Search(index, model, plan, "cpu", matching, max_batch=6), context_of(model, 6)
    found = search.run([nothing, some[0], nothing, some[1], some[2], nothing], context)
    assert found.faults == [None] * 6
    full = search.run([some[1], some[0], some[2], some[1], some[2], some[0]], context)
    assert_same_beams(found, full, [1, 3, 4])
    none = search.run([nothing] * 3, context[:3])
    assert none.faults == [None] * 3
    if matching == "exact":
        assert (found.nodes[[0, 2, 5]] == -1).all()
        assert (none.scores == -torch.inf).all()
        assert not none.tokens.any()


# ---- few beams, few SIDs, nobody's memory ----------------------------------------------------


@pytest.mark.parametrize("matching", MODES)
def test_one_beam_is_greedy(matching):
    index, requests = index_of(4, num_levels=5, vocab=6)
    model, context = model_of(index, **SMALL), None
    plan = BeamPlan((1,) * 5, 1)
    context = context_of(model, 4)
    found = Search(index, model, plan, "cpu", matching).run(requests[:4], context)
    assert found.nodes.shape == (4, 1)
    wanted = plain_search(index, model, plan, matching, requests[:4], context)
    assert_agree(index.trie, found, wanted, 1e-4)


@pytest.mark.parametrize("widths", [(1, 300, 300), (1, 2, 300)])
def test_fewer_sids_than_the_plan_wants(widths):
    """A plan that nobody has fitted to the trie ends in dead slots."""
    index, requests = index_of(1, num_levels=3, vocab=4, num_ads=30)
    model, context = model_of(index, **SMALL), None
    context = context_of(model, 2)
    search = Search(index, model, BeamPlan(widths, 500), "cpu", "valid")
    found = search.run(requests[:2], context)
    assert found.nodes.shape == (2, 500)
    fitted = BeamPlan(widths, 500).limited(index.level_sizes)
    wanted = Search(index, model, fitted, "cpu", "valid").run(requests[:2], context)
    for b in range(2):
        count = int((wanted.scores[b] > -torch.inf).sum())
        assert torch.equal(found.nodes[b, :count], wanted.nodes[b, :count])
        assert (found.nodes[b, count:] == -1).all()
        assert (found.scores[b, count:] == -torch.inf).all()
    if widths[1] == 300:
        assert count == index.num_sids


def test_results_are_copies_and_traces_are_asked_for():
    index, requests = index_of(5, num_levels=3, vocab=9)
    model, plan = model_of(index, **SMALL), plan_of(index.trie, 17)
    search = Search(index, model, plan, "cpu")
    context = context_of(model, 4)
    first = search.run(requests[:4], context)
    kept = [tensor.clone() for tensor in (first.tokens, first.nodes, first.scores, *first.entered)]
    search.run(requests[4:8], context_of(model, 4, 1))
    now = (first.tokens, first.nodes, first.scores, *first.entered)
    assert all(map(torch.equal, now, kept))
    short = search.run(requests[:4], context, trace=False)
    assert short.entered == short.entered_scores == []
    assert_same_beams(short, first)


def test_the_memory_of_a_search_is_counted():
    index, requests = index_of(5, num_levels=3, vocab=9)
    model, plan = model_of(index, **SMALL), plan_of(index.trie, 17)
    search = Search(index, model, plan, "cpu")
    assert search.search.num_bytes == 0
    sizes = []
    for number in (1, 4):
        search.run(requests[:number], context_of(model, number))
        sizes.append(search.search.num_bytes)
    layer = 2 * 3 * 8 * 4
    least = 2 * layer * (7 + sum(plan.widths[:-1]))
    assert least < sizes[0] < sizes[1]
    assert sizes[1] > 4 * least


def test_threads_share_a_search():
    index, _ = index_of(5, num_levels=3, vocab=9)
    model, plan = model_of(index, **SMALL), plan_of(index.trie, 17)
    search = Search(index, model, plan, "cpu", "off").search  # no matcher: nobody to be started
    contexts = [context_of(model, 1 + seed % 4, seed) for seed in range(8)]
    alone = [search.run(context) for context in contexts]
    failures = []

    def work(first):
        try:
            for turn in range(16):
                which = (first + turn) % 8
                assert_same_beams(search.run(contexts[which]), alone[which])
        except BaseException as failure:
            failures.append(failure)

    threads = [threading.Thread(target=work, args=(first,)) for first in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures[0]


# ---- buckets ---------------------------------------------------------------------------------


def test_buckets_up_to_the_one_that_holds_a_batch():
    wanted = {1: (1,), 2: (1, 2), 3: (1, 2, 4), 4: (1, 2, 4), 5: (1, 2, 4, 8),
              16: (1, 2, 4, 8, 16), 17: BUCKETS, 32: BUCKETS}  # fmt: skip
    for max_batch, buckets in wanted.items():
        assert fitting_buckets(max_batch) == buckets
    assert fitting_buckets(5, (3, 6, 12)) == (3, 6)
    assert fitting_buckets(3, (3, 6, 12)) == (3,)
    assert fitting_buckets(7, (7,)) == (7,)
    for max_batch in range(1, 33):
        buckets = fitting_buckets(max_batch)
        assert buckets[-1] >= max_batch
        assert len(buckets) == 1 or buckets[-2] < max_batch


@pytest.mark.parametrize(("max_batch", "buckets"), [(33, BUCKETS), (0, BUCKETS), (9, (4, 8))])
def test_a_batch_that_no_bucket_holds_is_refused(max_batch, buckets):
    with pytest.raises(ConfigError, match=f"from 1 to {buckets[-1]} requests, got {max_batch}"):
        fitting_buckets(max_batch, buckets)


@pytest.mark.parametrize("batch", [0, 5])
def test_more_requests_than_a_search_was_made_for_are_refused(batch):
    index, requests = index_of(5, num_levels=3, vocab=9)
    model, plan = model_of(index, **SMALL), plan_of(index.trie, 17)
    search = Search(index, model, plan, "cpu", max_batch=4)
    with pytest.raises(ValueError, match=f"of 1 to 4 requests, got {batch}"):
        search.run(requests[:batch], context_of(model, batch))
