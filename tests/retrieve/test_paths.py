"""Grace's own model on its fast way: what the plain module finds, whatever users do to it."""

import copy
import threading
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from harness import build
from hypothesis import given
from hypothesis import strategies as st
from model_cases import SPEC, random_features, small_index, small_model
from strategies import Case
from test_faults_swap import in_threads

from grace.decode import BeamPlan, CoreGenerator, step_search
from grace.errors import ConfigError
from grace.index import MATCHERS
from grace.index.host_matcher import HostMatcher
from grace.model import EncoderDecoder
from grace.retrieve import Retriever, paths
from grace.retrieve.own_model import FixedInputs, OwnModel
from grace.retrieve.paths import GeneratorPath, StepPath

MODES = [matching for matching in MATCHERS if matching != "off"]

sizes = st.fixed_dictionaries({
    "model_dim": st.sampled_from((1, 3, 12, 17)),
    "num_heads": st.sampled_from((1, 2, 3)),
    "head_dim": st.sampled_from((1, 3, 7)),
    "ffn_dim": st.sampled_from((1, 5, 16)),
    "decoder_layers": st.integers(1, 3),
})  # fmt: skip
cases = st.builds(
    Case, seed=st.integers(0, 1 << 20), num_levels=st.integers(1, 4),
    vocab=st.sampled_from((1, 2, 5, 20)), num_ads=st.sampled_from((1, 2, 20, 200)),
    num_requests=st.sampled_from((1, 3, 32)), rule_rate=st.sampled_from((0.0, 0.5, 0.9)),
    shape=st.sampled_from(("uniform", "few", "shared", "dense", "one")),
    width=st.sampled_from((1, 2, 5, 33, 1000)),
)  # fmt: skip


def requests_of(number, seed=0):
    draw = np.random.default_rng(seed)
    return [{"id": i, "features": random_features(draw)} for i in range(number)]


def found(results):
    return [(result.id, result.error, result.sids, result.ads) for result in results]


def step_by_step(retriever, model):
    """The same retriever, driving the module from Python."""
    other = copy.copy(retriever)
    generator = CoreGenerator(copy.deepcopy(model), retriever.index)
    other._path = GeneratorPath(
        generator, retriever.index, "cpu", retriever.matching, retriever.plan
    )
    return other


def assert_near(one, other):
    """The same SIDs but for those that rounding may exchange at a cut, the same trace then too."""
    assert (one.id, one.error) == (other.id, other.error)
    mine, theirs = dict(one.sids), dict(other.sids)
    for sid in mine.keys() & theirs.keys():
        assert mine[sid] == pytest.approx(theirs[sid], rel=1e-5, abs=1e-5)
    cut = min(theirs.values(), default=0.0)
    for sid in mine.keys() ^ theirs.keys():
        assert (mine | theirs)[sid] == pytest.approx(cut, abs=1e-4)
    if mine.keys() == theirs.keys():
        assert one.funnel == other.funnel
        assert (one.trace.steps, one.trace.matching) == (other.trace.steps, other.trace.matching)


@given(
    case=cases, sizes=sizes, matching=st.sampled_from(MODES), spare=st.sampled_from((0, 1, 30)),
    table_bytes=st.sampled_from((0, 1, 500, 5000, 10**9)),
    batch_size=st.sampled_from((1, 4, 32)),
)  # fmt: skip
def test_it_finds_what_the_module_finds(case, sizes, matching, spare, table_bytes, batch_size):
    index, features = build(case), np.random.default_rng(case.seed)
    model = small_model(
        seed=case.seed, num_levels=case.num_levels, vocab_size=index.vocab_size + spare, **sizes
    )
    requests = [request | {"features": random_features(features)} for request in case.requests]
    retriever = Retriever(
        index, model, BeamPlan(*case.plan), matching, batch_size=batch_size,
        table_bytes=table_bytes,
    )  # fmt: skip
    assert isinstance(retriever._path, StepPath)
    results = retriever.retrieve(requests, trace=True)
    plain = step_by_step(retriever, model).retrieve(requests, trace=True)
    for one, other in zip(results, plain, strict=True):
        assert_near(one, other)


@pytest.mark.parametrize("matching", ["off", "exact"])
def test_more_training_reaches_no_retriever(matching):
    """Not the encoder alone either, which would give a model that nobody ever trained."""
    index, requests = small_index(), requests_of(4)
    model = small_model(dropout=0.5)
    retriever = Retriever(index, model, matching=matching)
    before = found(retriever.retrieve(requests))
    model.train()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(2)
    assert found(retriever.retrieve(requests)) == before
    assert found(Retriever(index, model, matching=matching).retrieve(requests)) != before


@pytest.mark.parametrize("matching", ["off", "exact"])
def test_a_retriever_leaves_its_model_alone(matching):
    """In the middle of a training, say: it goes on training."""
    model = small_model(dropout=0.5).train()
    Retriever(small_index(), model, matching=matching).retrieve(requests_of(2))
    assert all(module.training for module in model.modules())
    assert all(parameter.requires_grad for parameter in model.parameters())


@pytest.mark.parametrize("matching", ["off", "exact"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_a_model_of_any_dtype(matching, dtype):
    """Its weights count, its dtype does not."""
    index, requests = small_index(), requests_of(4)
    model = small_model().to(dtype)
    wanted = Retriever(index, copy.deepcopy(model).float(), matching=matching).retrieve(requests)
    assert found(Retriever(index, model, matching=matching).retrieve(requests)) == found(wanted)
    assert next(model.parameters()).dtype == dtype


class NeverZero(EncoderDecoder):
    """Writes no token 0."""

    def decode(self, *step):
        logits, _ = super().decode(*step)
        logits[..., 0] = -torch.inf
        return logits, logits.double().logsumexp(-1)


class Adapted(torch.nn.Module):
    """A layer with an adapter beside it, which has the layer's weight as its own, as peft's has."""

    def __init__(self, base):
        super().__init__()
        self.base, self.weight = base, base.weight
        self.delta = torch.nn.Parameter(torch.randn_like(base.weight))

    def forward(self, x):
        return self.base(x) + x @ self.delta.T


def subclassed(model):
    changed = NeverZero(model.config, SPEC).eval()
    changed.load_state_dict(model.state_dict())
    return changed


def patched(model):
    model.decode = NeverZero.decode.__get__(subclassed(model))
    return model


def adapted(model):
    attention = model.decoder.layers[0].self_attention
    attention.query = Adapted(attention.query)
    return model


def hooked(model):
    model.decoder.heads[1].register_forward_hook(lambda module, args, logits: logits.flip(-1))
    return model


@pytest.mark.parametrize("change", [subclassed, patched, adapted, hooked])
def test_a_changed_model_is_obeyed(change):
    """Weights alone would not tell: it goes step by step."""
    index, requests = small_index(), requests_of(4)
    model = change(small_model())
    retriever = Retriever(index, model, BeamPlan((1, 4, 4), 4))
    wanted = step_by_step(retriever, small_model()).retrieve(requests)
    assert found(retriever.retrieve(requests)) != found(wanted)
    if change in (subclassed, patched):
        assert all(
            0 not in sid for result in retriever.retrieve(requests) for sid, _ in result.sids
        )
    with pytest.raises(ConfigError, match=r"precision must be auto or float32 for .* changed one"):
        Retriever(index, model, precision="bfloat16")


@pytest.mark.parametrize("value", [0, -1, 33, 1.5, True, "4", None, float("nan"), 10**400])
def test_a_wrong_batch_size(value):
    with pytest.raises(ConfigError, match="batch_size must be an integer from 1 to 32, got "):
        Retriever(small_index(), small_model(), batch_size=value)


@pytest.mark.parametrize("value", [-1, 1.5, True, "1", [], float("nan"), float("inf")])
def test_wrong_table_bytes(value):
    with pytest.raises(ConfigError, match="table_bytes must be an integer of at least 0, got "):
        Retriever(small_index(), small_model(), table_bytes=value)


@pytest.mark.parametrize("value", ["fp8", "", "FLOAT32", None, [], {}, torch.float32])
@pytest.mark.parametrize("matching", ["off", "exact"])
def test_a_wrong_precision(matching, value):
    with pytest.raises(ConfigError, match=r"precision must be one of auto, float32, .*, got "):
        Retriever(small_index(), small_model(), matching=matching, precision=value)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_mode_off_decodes_as_the_others_do(precision):
    """As wide as there are SIDs of any kind: it finds what `valid` finds, with the same bits."""
    index, model, requests = small_index(), small_model(), requests_of(3)
    plans = {
        "valid": BeamPlan(index.level_sizes[:-1], index.num_sids),
        "off": BeamPlan((1, 5, 25), 125),
    }
    valid, off = (
        Retriever(index, model, plan, matching, precision=precision, batch_size=1).retrieve(
            requests
        )
        for matching, plan in plans.items()
    )
    for one, other in zip(valid, off, strict=True):
        found = set(one.sids)
        assert len(found) == index.num_sids
        assert found <= set(other.sids)


@pytest.mark.parametrize("value", [None, 5, ["cpu"]])
def test_a_wrong_device(value):
    with pytest.raises(ConfigError, match="device: expected a name"):
        Retriever(small_index(), small_model(), device=value)


@pytest.mark.parametrize("error", [RuntimeError, MemoryError, KeyboardInterrupt])
def test_a_search_that_ends_in_an_error_leaves_nothing_behind(monkeypatch, error):
    index, requests = small_index(), requests_of(4)
    retriever = Retriever(index, small_model())
    wanted = found(retriever.retrieve(requests))

    def broken(*args):
        step_search_run(*args)
        raise error("in the middle")

    step_search_run = step_search.run_steps
    monkeypatch.setattr(step_search, "run_steps", broken)
    with pytest.raises(error, match="in the middle"):
        retriever.retrieve(requests)
    monkeypatch.undo()
    answer = []
    thread = threading.Thread(target=lambda: answer.append(found(retriever.retrieve(requests))))
    thread.start()
    thread.join(60)
    assert answer == [wanted]


@pytest.mark.parametrize("precision", ["float32", "bfloat16", "float8"])
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_a_context_without_numbers_fails_alone(precision, value):
    model, requests = small_model(), requests_of(5)
    model.encoder.register_forward_hook(lambda module, args, out: spoil(out))
    spoiled: list[int] = []

    def spoil(context):
        context[spoiled] = value
        return context

    retriever = Retriever(small_index(), model, precision=precision, table_bytes=10**6)
    wanted = found(retriever.retrieve(requests))
    spoiled.append(3)
    results = found(retriever.retrieve(requests))
    assert results[3][1] == {
        "field": "logits", "message": "the model's logits at step 0 hold NaN or +inf",
    }  # fmt: skip
    assert results[:3] + results[4:] == wanted[:3] + wanted[4:]
    spoiled.clear()
    assert found(retriever.retrieve(requests)) == wanted


def test_threads_share_a_retriever_while_ads_are_paused():
    """Each answer is that of one thread alone, less what was paused before it."""
    index, requests = small_index(), requests_of(12)
    retriever = Retriever(index, small_model(), batch_size=4)
    wanted = [
        result.sids
        for result in Retriever(index, small_model(), matching="valid", batch_size=4).retrieve(
            requests
        )
    ]
    ads, off, lock = list(range(0, 60, 3)), set(), threading.Lock()

    def ask():
        with lock:
            before = set(off)
        for result, sids in zip(retriever.retrieve(requests), wanted, strict=True):
            assert result.error is None
            assert not {ad.ad_id for ad in result.ads} & before
            assert set(result.sids) <= set(sids)

    def pause():
        if ads:
            ad = ads.pop()
            index.pause([ad])
            with lock:
                off.add(ad)

    in_threads(2, pause, ask, ask, ask)
    assert off


@pytest.mark.parametrize("matching", ["valid", "exact"])
def test_a_search_that_encodes_finds_what_one_after_the_encoder_finds(matching):
    """On memory that stays in place, which holds other requests in the rows of smaller batches."""
    index, requests = small_index(), requests_of(11)
    make = partial(Retriever, index, small_model(), matching=matching, batch_size=4)
    plain, encoding = make(), make()
    path = encoding._path
    path._search._source, path._in_graph = FixedInputs(path._model, 4), True
    for first, count in ((0, 4), (4, 1), (5, 3), (8, 2), (10, 1), (0, 4)):
        some = requests[first : first + count]
        assert found(encoding.retrieve(some)) == found(plain.retrieve(some))


def test_an_encoder_that_somebody_changed_is_in_no_graph():
    index = small_index()
    assert OwnModel(small_model(), index, "cpu", "float32").has_own_encoder
    hooked, other = small_model(), small_model()
    hooked.encoder.layers[0].register_forward_hook(lambda module, given, out: None)
    other.encoder.context.query_norm = Adapted(other.encoder.context.query_norm)
    for model in (hooked, other):
        assert not OwnModel(model, index, "cpu", "float32").has_own_encoder


def test_where_the_encoder_cannot_be_captured_it_is_launched_as_it_is(monkeypatch, caplog):
    made = []

    def search(*args, source=None, **options):
        made.append(source)
        if source is not None:
            raise RuntimeError("operation not permitted when stream is capturing")
        return step_search.StepSearch(*args, **options)

    index, model = small_index(), small_model()
    retriever = Retriever(index, model)
    own, plan = retriever._path._model, retriever.plan
    monkeypatch.setattr(paths, "StepSearch", search)
    monkeypatch.setattr(paths, "DeviceIndex", on_the_host)
    path = paths.StepPath(own, index, "cuda", "exact", plan, 16, 0)
    assert [source is None for source in made] == [False, True]
    assert "the encoder cannot be captured" in caplog.text
    assert not path._in_graph


def on_the_host(index, device, matching):
    """What a device's index would be."""
    return SimpleNamespace(trie=index.trie, matcher=HostMatcher(index, matching))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
def test_an_encoder_in_a_graph_computes_what_it_computes_outside():
    index, requests = small_index(), requests_of(11)
    make = partial(
        Retriever, index, small_model(), device="cuda", precision="float32", batch_size=4
    )
    inside, outside = make(), make()
    path = outside._path
    assert inside._path._in_graph
    assert path._in_graph
    path._in_graph, steps = False, path._search
    path._search = step_search.StepSearch(
        steps.decoder, steps.trie, steps.matcher, steps.plan, steps.max_batch,
        path._model.num_context,
    )  # fmt: skip
    for first, count in ((0, 4), (4, 1), (5, 3), (8, 2), (10, 1), (0, 4)):
        some = requests[first : first + count]
        for one, other in zip(inside.retrieve(some), outside.retrieve(some), strict=True):
            assert one.error is other.error is None
            scores = [[ad.score for ad in result.ads] for result in (one, other)]
            torch.testing.assert_close(*map(torch.tensor, scores), atol=1e-4, rtol=0)


def test_a_failed_capture_is_captured_again(monkeypatch):
    """A matcher grew, and its new graphs did not come to be: the next search must not lack them."""
    index = small_index()
    search = Retriever(index, small_model(), batch_size=2)._path._search
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: (0, 0))
    search.matcher.generation, search._generation = 1, 0
    search._buffers = dict.fromkeys(search.buckets)
    captured = []

    def capture(bucket, pool):
        captured.append(bucket)
        if len(captured) == 2:
            raise KeyboardInterrupt

    search._capture = capture
    with pytest.raises(KeyboardInterrupt):
        search._capture_all()
    assert search._generation != search.matcher.generation
    search._capture_all()
    assert search._generation == search.matcher.generation
    assert captured == [2, 1, 2, 1]


@pytest.mark.parametrize("requests", [{"id": 1}, "abc", b"abc"])
def test_one_request_is_no_sequence_of_them(requests):
    retriever = Retriever(small_index(), small_model())
    with pytest.raises(TypeError, match="requests must be a sequence of requests, got one "):
        retriever.retrieve(requests)


def test_a_device_that_own_models_do_not_know():
    with pytest.raises(ConfigError, match=r"device must be cpu or cuda .*, got 'meta'"):
        OwnModel(small_model(), small_index(), "meta", "float32")


def test_weights_that_do_not_fit(monkeypatch):
    def full(*_):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr("grace.retrieve.own_model.StepDecoder", full)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (3 * 10**8, 10**9))
    with pytest.raises(ConfigError, match=r"weights do not fit on cpu, 0\.30 GB are free"):
        OwnModel(small_model(), small_index(), "cpu", "float32")
