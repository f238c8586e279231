"""Decoding on a CUDA device in graphs: what the CPU finds, whoever else is there and was before.

Nothing is tuned: the kernels take their default configurations.
"""

import gc
import threading

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
from device_cases import AT, place_index, place_requests

from grace.decode import BeamPlan, step_search
from grace.errors import ConfigError
from grace.index import MATCHERS
from grace.index.on_device import DeviceIndex
from grace.index.unions import UNIONS
from grace.kernels.capture import POOL, Holder, own_stream
from grace.kernels.tuning import pinned
from grace.model.step_decoder import StepDecoder

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
]
MODES = [matching for matching in MATCHERS if matching != "off"]
STYLES = ("smooth", "coarse", "holes")
SMALL = {"model_dim": 64, "num_heads": 2, "head_dim": 32, "ffn_dim": 96, "num_context_tokens": 24}
SHAPES = {
    "one token, one context": (
        {"num_levels": 1, "vocab": 200, "num_ads": 150}, 33,
        {"model_dim": 40, "num_heads": 1, "head_dim": 32, "ffn_dim": 56, "num_context_tokens": 1},
    ),
    "three heads of 48": (
        {"num_levels": 2, "vocab": 40, "num_ads": 600}, 33,
        {"model_dim": 100, "num_heads": 3, "head_dim": 48, "ffn_dim": 72, "num_context_tokens": 17},
    ),
    "context of 1024": (
        {"num_levels": 3, "vocab": 12, "num_ads": 600}, 24,
        {"model_dim": 64, "num_heads": 2, "head_dim": 64, "ffn_dim": 128,
         "num_context_tokens": 1024},
    ),
    "one head of 256": (
        {"num_levels": 4, "vocab": 300, "num_ads": 500}, 24,
        {"model_dim": 128, "num_heads": 1, "head_dim": 256, "ffn_dim": 96,
         "num_context_tokens": 65},
    ),
    "32 heads, eight tokens": (
        {"num_levels": 8, "vocab": 5, "num_ads": 400}, 24,
        {"model_dim": 96, "num_heads": 32, "head_dim": 32, "ffn_dim": 64,
         "num_context_tokens": 128},
    ),
    "five heads of 128": (
        {"num_levels": 2, "vocab": 9, "num_ads": 80}, 129,
        {"model_dim": 72, "num_heads": 5, "head_dim": 128, "ffn_dim": 50,
         "num_context_tokens": 300},
    ),
    "seven heads of 50": (
        {"num_levels": 3, "vocab": 513, "num_ads": 300}, 33,
        {"model_dim": 33, "num_heads": 7, "head_dim": 50, "ffn_dim": 31, "num_context_tokens": 31},
    ),
    "three layers": (
        {"num_levels": 3, "vocab": 30, "num_ads": 900}, 65,
        {"model_dim": 256, "num_heads": 4, "head_dim": 64, "ffn_dim": 320,
         "num_context_tokens": 129, "decoder_layers": 3},
    ),
}  # fmt: skip


@pytest.fixture(autouse=True)
def untuned():
    """The same kernels on every machine, and no time spent on measuring."""
    with pinned():
        yield


@pytest.fixture(scope="module")
def small():
    """An index, its requests and a model that many tests share."""
    index, requests = index_of(5, num_levels=3, vocab=20, num_ads=1500, rule_rate=0.4)
    return index, requests, model_of(index, **SMALL), plan_of(index.trie, 24)


# ---- given identical logits ------------------------------------------------------------------


@pytest.mark.parametrize("matching", MATCHERS)
@pytest.mark.parametrize("style", STYLES)
def test_identical_logits_select_the_same_bits(matching, style):
    """Eager and replayed, over memory full of garbage, batch after batch of different sizes."""
    index, requests = index_of(2, num_levels=3, vocab=40, num_ads=4000)
    plan = BeamPlan((1, 40, 90), 65).limited(index.level_sizes)
    dtype = torch.bfloat16 if (style, matching) == ("holes", "exact") else torch.float32
    here, there = (DeviceIndex(index, device, matching) for device in ("cpu", "cuda"))
    for batch, sizes in ((16, (16, 3, 9)), (1, (1, 1)), (32, (32, 17))):
        found, wanted = (
            FixedLogits(on.trie, plan, batch, on.matcher, style, batch, dtype)
            for on in (there, here)
        )
        graph = None
        for size in sizes:
            some = requests[-size:]
            for on in (here, there):
                if on.matcher is not None:
                    on.matcher.start(some)
            wanted.poison()
            wanted.enqueue()
            found.poison()
            found.enqueue()
            assert_identical(found.results(), wanted.results())
            graph = graph or captured(found.enqueue)
            found.poison()
            graph.replay()
            assert_identical(found.results(), wanted.results())


def captured(enqueue):
    """A graph of what `enqueue` enqueues; it has run once, as a capture asks for."""
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        enqueue()
    return graph


# ---- with a model ----------------------------------------------------------------------------


@pytest.mark.parametrize("shape", SHAPES)
def test_float32_finds_what_the_cpu_finds(shape):
    compare(shape, "float32", batches=(3, 1, 4))


@pytest.mark.parametrize("shape", ["three heads of 48", "one head of 256", "three layers"])
def test_bfloat16_finds_what_the_cpu_finds(shape):
    compare(shape, "bfloat16", batches=(4, 2))


def test_bfloat16_in_our_own_products_finds_what_the_cpu_finds():
    """Triton's linear layers, which nothing chooses by default."""
    with pinned(
        lambda candidates: next((c for c in candidates if c[0] == "triton"), candidates[0])
    ):
        compare("three layers", "bfloat16", batches=(4,))


def test_float8_finds_what_the_cpu_finds(monkeypatch):
    """All products in E4M3, also those too small for it to pay."""
    monkeypatch.setattr("grace.model.projection.LEAST_FP8_FLOPS", 1)
    compare("three layers", "float8", batches=(4, 1), buckets=(1, 2, 4))


def compare(shape, precision, batches, buckets=(4,)):
    """Searches of several batches, the same on both devices, with contexts of their own lengths."""
    sizes, width, model_sizes = SHAPES[shape]
    index, requests = index_of(7, rule_rate=0.3, **sizes)
    model, plan = model_of(index, **model_sizes), plan_of(index.trie, width)
    for ragged in (False, True):
        here, there = (
            Search(
                index,
                model,
                plan,
                device,
                "exact",
                precision,
                max(batches),
                ragged=ragged,
                buckets=buckets,
            )
            for device in ("cpu", "cuda")
        )
        for batch in batches if not ragged else batches[:1]:
            context = context_of(model, batch, batch)
            lengths = None
            if ragged:
                draw = torch.Generator().manual_seed(batch)
                lengths = torch.randint(1, context.shape[1] + 1, (batch,), generator=draw).int()
            wanted = here.run(requests[:batch], context, lengths)
            there.poison()
            found = there.run(requests[:batch], context, lengths)
            assert_agree(index.trie, found, wanted, TOLERANCES[precision])


@pytest.mark.parametrize("matching", MODES)
def test_every_matcher_with_a_model(small, matching):
    index, requests, model, plan = small
    here, there = (Search(index, model, plan, device, matching) for device in ("cpu", "cuda"))
    for first, batch in ((0, 4), (4, 1), (5, 3), (8, 2)):
        some, context = requests[first : first + batch], context_of(model, batch, first)
        found, wanted = there.run(some, context), here.run(some, context)
        assert_agree(index.trie, found, wanted, TOLERANCES["float32"])


@pytest.mark.parametrize("levels", [0, 1, 3])
def test_prefix_tables_change_rounding_alone(small, levels):
    index, requests, model, plan = small
    config = model.config
    tokens = 1 + (config.num_levels - 1) * config.vocab_size
    width = config.num_heads * config.head_dim
    table_bytes = 4 * (
        tokens * 3 * width + sum(index.level_sizes[:levels]) * (config.model_dim + width)
    )
    here = Search(index, model, plan, "cpu")
    there = Search(index, model, plan, "cuda", table_bytes=table_bytes)
    assert len(there.search.tables.levels) == levels
    for first, batch in ((0, 4), (4, 1), (5, 3)):
        some, context = requests[first : first + batch], context_of(model, batch, first)
        there.poison()
        found, wanted = there.run(some, context), here.run(some, context)
        assert_agree(index.trie, found, wanted, TOLERANCES["float32"])


# ---- the same whatever was and is there ------------------------------------------------------


@pytest.mark.parametrize("precision", ["float32", "bfloat16", "float8"])
def test_a_thousand_replays_are_bit_identical(small, precision, monkeypatch):
    monkeypatch.setattr("grace.model.projection.LEAST_FP8_FLOPS", 1)
    index, requests, model, plan = small
    search = Search(index, model, plan, "cuda", precision=precision, max_batch=8)
    context = context_of(model, 7).cuda()
    first = search.run(requests[:7], context)
    assert (first.scores > -torch.inf).any()
    for replay in range(1000):
        if replay % 100 == 0:
            search.poison()
        assert_same_beams(search.run(requests[:7], context, trace=False), first)


@pytest.mark.parametrize("matching", MODES)
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_poison_changes_nothing(small, matching, precision):
    index, requests, model, plan = small
    search = Search(index, model, plan, "cuda", matching, precision, max_batch=8)
    for batch in (8, 5, 1):
        context = context_of(model, batch)
        clean = search.run(requests[:batch], context)
        for _ in range(3):
            search.poison()
            assert_same_beams(search.run(requests[:batch], context), clean)


@pytest.mark.parametrize("precision", ["float32", "bfloat16", "float8"])
def test_neighbours_change_nothing(small, precision, monkeypatch):
    """A request among others, among copies of itself, among NaN and alone in its bucket."""
    monkeypatch.setattr("grace.model.projection.LEAST_FP8_FLOPS", 1)
    index, requests, model, plan = small
    search = Search(index, model, plan, "cuda", precision=precision, max_batch=8)
    context = context_of(model, 8)
    together = search.run(requests[:8], context)
    others = context_of(model, 8, seed=1)
    for b in (0, 3, 7):
        changed = others.clone()
        changed[b] = context[b]
        asked = [*requests[8 : 8 + b], requests[b], *requests[20 : 27 - b]]
        assert_same_beams(search.run(asked, changed), together, [b])
        changed[:b] = changed[b + 1 :] = torch.nan
        found = search.run(asked, changed)
        assert_same_beams(found, together, [b])
        copies = context[b].expand(8, -1, -1)
        found = search.run([requests[b]] * 8, copies)
        assert_same_beams(found, together, [b])
    for batch in (5, 6, 7):
        assert_same_beams(search.run(requests[:batch], context[:batch]), together, range(batch))


@pytest.mark.parametrize("precision", ["float32", "bfloat16", "float8"])
def test_the_order_of_requests_changes_nothing(small, precision, monkeypatch):
    monkeypatch.setattr("grace.model.projection.LEAST_FP8_FLOPS", 1)
    index, requests, model, plan = small
    search = Search(index, model, plan, "cuda", precision=precision, max_batch=8)
    context = context_of(model, 8)
    together = search.run(requests[:8], context)
    for seed in range(3):
        order = torch.randperm(8, generator=torch.Generator().manual_seed(seed)).tolist()
        found = search.run([requests[b] for b in order], context[order])
        assert_same_beams(found, together, range(8), order)


def test_a_bad_context_fails_alone(small):
    index, requests, model, plan = small
    search = Search(index, model, plan, "cuda", "valid", max_batch=4)
    context = context_of(model, 3)
    clean = search.run(requests[:3], context)
    for bad in (torch.nan, torch.inf):
        broken = context.clone()
        broken[1, 5, 7] = bad
        found = search.run(requests[:3], broken)
        assert found.faults == [None, "the model's logits at step 0 hold NaN or +inf", None]
        assert not (found.scores[1] > -torch.inf).any()
        assert (found.nodes[1] == -1).all()
        assert_same_beams(found, clean, [0, 2])
        assert_same_beams(search.run(requests[:3], context), clean)


@pytest.mark.parametrize("matching", ["exact", "bitmask+bloom"])
def test_batches_of_any_size_take_turns(small, matching):
    index, requests, model, plan = small
    search = Search(index, model, plan, "cuda", matching, "bfloat16", max_batch=32)
    assert search.search.buckets == (1, 2, 4, 8, 16, 32)
    fresh = {}
    for turn, batch in enumerate((1, 3, 16, 2, 32, 1, 3, 32, 2, 16)):
        context = context_of(model, batch, batch)
        if batch not in fresh:
            alone = Search(index, model, plan, "cuda", matching, "bfloat16", max_batch=batch)
            fresh[batch] = alone.run(requests[:batch], context)
        if turn % 2:
            search.poison()
        assert_same_beams(search.run(requests[:batch], context), fresh[batch])


def test_widths_grow_and_shrink_between_searches(small):
    index, requests, model, _ = small
    plans = [
        BeamPlan((1, *widths), last).limited(index.level_sizes)
        for *widths, last in ((24, 24, 24), (1, 1, 1), (20, 400, 1000), (3, 2, 1))
    ]
    searches = [Search(index, model, plan, "cuda", max_batch=2) for plan in plans]
    here = [Search(index, model, plan, "cpu", max_batch=2) for plan in plans]
    for turn, which in enumerate((0, 2, 1, 3, 2, 0, 1)):
        batch = 1 + turn % 2
        some, context = requests[turn : turn + batch], context_of(model, batch, turn)
        found, wanted = (s[which].run(some, context) for s in (searches, here))
        assert_agree(index.trie, found, wanted, TOLERANCES["float32"])


def test_requests_without_an_eligible_ad_among_others():
    index = place_index()
    nothing = index.compile({"place": ["nowhere"]}, AT)
    some = place_requests(index, (300, 200, 400))
    model, plan = model_of(index, **SMALL), plan_of(index.trie, 24)
    for matching in MODES:
        search = Search(index, model, plan, "cuda", matching, max_batch=8)
        context = context_of(model, 6)
        found = search.run([nothing, some[0], nothing, some[1], some[2], nothing], context)
        assert found.faults == [None] * 6
        dead = ~(found.scores > -torch.inf).any(1)
        if matching == "exact":
            assert dead.tolist() == [True, False, True, False, False, True]
        full = search.run([some[1], some[0], some[2], some[1], some[2], some[0]], context)
        assert_same_beams(found, full, [1, 3, 4])
        for number in (3, 1):
            none = search.run([nothing] * number, context[:number])
            assert none.faults == [None] * number
            assert matching != "exact" or (none.nodes == -1).all()


# ---- two searches ----------------------------------------------------------------------------


def test_two_searches_on_two_threads(small):
    """Each with its own matcher, stream and thread; both get what they get alone."""
    index, requests, model, plan = small
    kinds = (("exact", "bfloat16", plan), ("bitmask+bloom", "float32", plan_of(index.trie, 65)))
    searches = [Search(index, model, p, "cuda", m, precision) for m, precision, p in kinds]
    jobs = [(first, 1 + first % 4) for first in range(0, 24, 3)]
    inputs = {job: (requests[job[0] : sum(job)], context_of(model, job[1], job[0])) for job in jobs}
    alone = [{job: search.run(*inputs[job]) for job in jobs} for search in searches]
    failures = []

    def work(which):
        try:
            with torch.cuda.stream(torch.cuda.Stream()):
                for turn in range(80):
                    job = jobs[(turn * 5 + which) % len(jobs)]
                    assert_same_beams(searches[which].run(*inputs[job]), alone[which][job])
        except BaseException as failure:
            failures.append(failure)

    threads = [threading.Thread(target=work, args=(which,)) for which in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures[0]


@pytest.mark.parametrize("matching", ["exact", "dynamic-kway"])
def test_an_index_is_swapped(small, matching):
    """Another version at other addresses, beside the first and when that is gone."""
    index, requests, model, plan = small
    second, others = index_of(6, num_levels=3, vocab=20, num_ads=2500, rule_rate=0.4)
    context = context_of(model, 3)
    before = Search(index, model, plan, "cuda", matching)
    wanted = before.run(requests[:3], context)
    after = Search(second, model, plan, "cuda", matching)
    wanted_after = after.run(others[:3], context)
    here = Search(second, model, plan, "cpu", matching).run(others[:3], context)
    assert_agree(second.trie, wanted_after, here, TOLERANCES["float32"])
    for _ in range(3):
        assert_same_beams(before.run(requests[:3], context), wanted)
        assert_same_beams(after.run(others[:3], context), wanted_after)
    del before
    gc.collect()
    torch.cuda.empty_cache()
    garbage = [torch.full((1 << 22,), torch.nan, device="cuda") for _ in range(8)]
    for _ in range(3):
        assert_same_beams(after.run(others[:3], context), wanted_after)
    del garbage
    third = Search(index, model, plan, "cuda", matching)
    assert_same_beams(third.run(requests[:3], context), wanted)
    assert_same_beams(after.run(others[:3], context), wanted_after)


@pytest.mark.parametrize("matching", UNIONS)
def test_more_places_than_there_was_room_for(matching):
    index = place_index()
    model, plan = model_of(index, **SMALL), plan_of(index.trie, 24)
    here, there = (Search(index, model, plan, device, matching) for device in ("cpu", "cuda"))
    generations = []
    for turn, counts in enumerate(((1, 64), (2,), (65, 3, 9), (128,), (1, 300, 2), (1,))):
        some, context = place_requests(index, counts), context_of(model, len(counts), turn)
        graphs = dict(there.search._graphs)
        found, wanted = there.run(some, context), here.run(some, context)
        assert_agree(index.trie, found, wanted, TOLERANCES["float32"])
        grown = there.on_device.matcher.generation
        assert (there.search._graphs == graphs) == (grown == max(generations, default=0))
        generations.append(grown)
    assert generations == [0, 0, 1, 1, 2, 2]


def test_a_swap_under_load(small):
    """One thread searches while another makes searches over other versions, time and again.

    They come and go more often than torch has streams.
    """
    index, requests, model, plan = small
    second, others = index_of(6, num_levels=3, vocab=20, num_ads=2500, rule_rate=0.4)
    context = context_of(model, 3).cuda()
    serving = Search(index, model, plan, "cuda")
    wanted = serving.run(requests[:3], context)
    failures, ended = [], threading.Event()

    def serve():
        try:
            while not ended.is_set():
                assert_same_beams(serving.run(requests[:3], context), wanted)
        except BaseException as failure:
            failures.append(failure)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        kept, found = [], []
        for turn in range(12):
            kept.append(Search(second, model, plan, "cuda", max_batch=3))
            found.append(kept[-1].run(others[:3], context_of(model, 3)))
            if turn % 2:
                kept.clear()
    finally:
        ended.set()
        thread.join()
    assert not failures, failures[0]
    for beams in found[1:]:
        assert_same_beams(beams, found[0])


def test_streams_of_their_own():
    device = torch.device("cuda", 0)
    holders = [Holder() for _ in range(8)]  # this process has streams besides
    held = {own_stream(holder, device).cuda_stream for holder in holders}
    assert len(held) == len(holders)
    for _ in range(POOL):  # a short-lived one is dealt out again
        assert own_stream(Holder(), device).cuda_stream not in held


# ---- too little memory -----------------------------------------------------------------------


def test_what_cannot_fit_is_refused(small):
    index, requests, model, plan = small
    decoder = StepDecoder(model_of(index, **SMALL).decoder, model.config, "cuda", "bfloat16")
    there = DeviceIndex(index, "cuda", "exact")
    before = torch.cuda.memory_allocated()
    with pytest.raises(ConfigError) as refused:
        step_search.StepSearch(decoder, there.trie, there.matcher, plan, 32, 10**9)
    for words in ("decoding 32 requests", str(plan.widths), "GB are free", "lower batch_size"):
        assert words in str(refused.value)
    del refused
    gc.collect()
    assert torch.cuda.memory_allocated() <= before
    search = Search(index, model, plan, "cuda")
    assert search.run(requests[:2], context_of(model, 2)).faults == [None, None]


def shortage(error):
    """A step that has no memory while a graph is captured."""
    step = StepDecoder.step

    def short(self, state, parents, tokens, t, *more):
        if t == 2 and torch.cuda.is_current_stream_capturing():
            raise error
        return step(self, state, parents, tokens, t, *more)

    return short


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB."),
        RuntimeError("CUDA error: out of memory"),
    ],
)
def test_memory_that_ends_in_a_capture_is_refused(small, monkeypatch, error):
    index, requests, model, plan = small
    wanted = Search(index, model, plan, "cuda").run(requests[:2], context_of(model, 2))
    with monkeypatch.context() as patch:
        patch.setattr(StepDecoder, "step", shortage(error))
        with pytest.raises(ConfigError, match=rf"does not fit.*{str(error)[:30]}"):
            Search(index, model, plan, "cuda")
    found = Search(index, model, plan, "cuda").run(requests[:2], context_of(model, 2))
    assert_same_beams(found, wanted)


def test_a_capture_that_failed_is_tried_again(monkeypatch):
    """A matcher's buffers grew, and there was no memory for the new graphs for a moment."""
    index = place_index()
    model, plan = model_of(index, **SMALL), plan_of(index.trie, 24)
    here, there = (
        Search(index, model, plan, device, "bitmask+bloom") for device in ("cpu", "cuda")
    )
    some, context = place_requests(index, (300, 2)), context_of(model, 2)
    there.run(some[1:], context[1:])
    with monkeypatch.context() as patch:
        patch.setattr(StepDecoder, "step", shortage(torch.OutOfMemoryError("for a moment")))
        with pytest.raises(torch.OutOfMemoryError, match="for a moment"):
            there.run(some, context)
    found, wanted = there.run(some, context), here.run(some, context)
    assert_agree(index.trie, found, wanted, TOLERANCES["float32"])
