"""Steps over static memory against the plain module, and what may stand in that memory."""

import copy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from model_cases import small_model, with_random_norms

from grace.errors import ConfigError
from grace.kernels.self_attention import self_attention_paged
from grace.model import projection
from grace.model.beam_cache import BeamCache
from grace.model.step_decoder import StepDecoder

# Of one logit, whose standard deviation is about 0.6 here.
TOLERANCES = {"float32": 2e-5, "bfloat16": 0.03, "float8": 0.2}
WIDTHS = (1, 2, 3, 7, 9)

shapes = st.fixed_dictionaries({
    "seed": st.integers(0, 1 << 20),
    "batch": st.integers(1, 5),
    "num_levels": st.integers(1, 8),
    "vocab_size": st.sampled_from((1, 2, 7, 33, 130)),
    "model_dim": st.sampled_from((4, 16, 33, 40)),  # the norm of one number is little but its sign
    "num_heads": st.sampled_from((1, 2, 3, 7, 32)),
    "head_dim": st.sampled_from((1, 5, 32, 48, 64, 128, 256)),
    "ffn_dim": st.sampled_from((1, 7, 32)),
    "decoder_layers": st.integers(1, 3),
    "num_context_tokens": st.sampled_from((1, 2, 5, 33, 128)),
})  # fmt: skip


class Beams:
    """Random beams of all steps: widths that grow and shrink, parents with several children."""

    def __init__(self, seed, batch, num_levels, vocab_size):
        draw = torch.Generator().manual_seed(seed)
        picks = torch.randint(0, len(WIDTHS), (num_levels - 1,), generator=draw).tolist()
        self.widths = (1, *(WIDTHS[pick] for pick in picks))
        self.steps = [(None, None)]
        for before, width in zip(self.widths, self.widths[1:], strict=False):
            parents = torch.randint(0, before, (batch, width), generator=draw)
            tokens = torch.randint(0, vocab_size, (batch, width), generator=draw)
            self.steps.append((parents, tokens))

    def of(self, rows):
        """The same beams for some of the requests, in any order."""
        some = copy.copy(self)
        some.steps = [(None, None), *((p[rows], k[rows]) for p, k in self.steps[1:])]
        return some


def drawn(seed, batch, **sizes):
    """A model, a context `[B, T, model_dim]` and beams."""
    model = with_random_norms(small_model(seed=seed, num_recent_tokens=0, **sizes), seed)
    draw = torch.Generator().manual_seed(seed)
    context = torch.randn(batch, model.config.num_context_tokens, model.config.model_dim,
                          generator=draw)  # fmt: skip
    return model, context, Beams(seed, batch, model.config.num_levels, model.config.vocab_size)


@torch.no_grad()
def plain_logits(model, context, beams):
    """Per step what the module says, in float64."""
    decoder = copy.deepcopy(model.decoder).double()
    for module in decoder.modules():
        if isinstance(module, torch.nn.RMSNorm):
            module.eps = torch.finfo(torch.float32).eps
    key_values = decoder.project_context(context.double())
    cache = BeamCache(model.config, max(beams.widths), key_values[0][0])
    logits = []
    for t, (parents, tokens) in enumerate(beams.steps):
        if t:
            cache.reorder(parents, t)
        logits.append(decoder.step(key_values, cache, tokens, t))
    return logits


@torch.no_grad()
def step_logits(decoder, context, beams, lengths=None, memory=None, ragged=False):
    """Per step what a `StepDecoder` says, over `memory` or over new memory full of NaN."""
    if memory is None:
        ragged = ragged or lengths is not None
        memory = decoder.memory(len(context), beams.widths, context.shape[1], ragged)
        poison(memory)
    decoder.load(memory, context, lengths)
    state = decoder.start(memory)
    return [
        decoder.step(state, parents, tokens, t) for t, (parents, tokens) in enumerate(beams.steps)
    ]


def poison(memory):
    for tensor in (*memory.context, *memory.pools, *memory.value_scales):
        tensor.fill_(torch.nan)


def assert_close(found, wanted, tolerance):
    for t, (logits, want) in enumerate(zip(found, wanted, strict=True)):
        assert logits.shape == want.shape
        error = (logits.double() - want.double()).abs().max().item()
        assert error <= tolerance, (t, error)


def assert_equal(found, wanted):
    for logits, want in zip(found, wanted, strict=True):
        assert torch.equal(logits, want)


@given(shape=shapes)
def test_float32_says_what_the_module_says(shape):
    model, context, beams = drawn(**shape)
    found = step_logits(StepDecoder(model.decoder, model.config, "cpu", "float32"), context, beams)
    assert all(logits.dtype == torch.float32 for logits in found)
    wanted = plain_logits(model, context, beams)
    scale = max(1.0, *(logits.abs().max().item() for logits in wanted))
    assert_close(found, wanted, TOLERANCES["float32"] * scale)


@given(shape=shapes, precision=st.sampled_from(("bfloat16", "float8")))
def test_less_precision_is_still_near(shape, precision):
    """With float8 as it is no product here is large enough for E4M3."""
    shape = shape | {"model_dim": 24, "ffn_dim": 32}
    model, context, beams = drawn(**shape)
    found = step_logits(StepDecoder(model.decoder, model.config, "cpu", precision), context, beams)
    assert all(logits.dtype == torch.bfloat16 for logits in found)
    assert_close(found, plain_logits(model, context, beams), TOLERANCES["bfloat16"])


@pytest.fixture
def all_in_fp8(monkeypatch):
    """Every product in E4M3, also those too small for it to pay."""
    monkeypatch.setattr(projection, "LEAST_FP8_FLOPS", 1)


FP8 = {"num_levels": 4, "vocab_size": 33, "model_dim": 48, "num_heads": 3, "head_dim": 32,
       "ffn_dim": 40, "num_context_tokens": 9}  # fmt: skip


@pytest.mark.parametrize("seed", range(4))
def test_float8_is_near_and_runs_through_e4m3(all_in_fp8, seed):
    model, context, beams = drawn(seed=seed, batch=3, **FP8)
    wanted = plain_logits(model, context, beams)
    kinds = ("bfloat16", "float8")
    found = {kind: StepDecoder(model.decoder, model.config, "cpu", kind) for kind in kinds}
    found = {kind: step_logits(decoder, context, beams) for kind, decoder in found.items()}
    assert_close(found["float8"], wanted, TOLERANCES["float8"])
    errors = {
        kind: sum((a.double() - b).square().sum() for a, b in zip(logits, wanted, strict=True))
        for kind, logits in found.items()
    }
    assert errors["float8"] > 4 * errors["bfloat16"]


@pytest.mark.parametrize("seed", range(3))
def test_float8_where_it_pays_for_some_products(monkeypatch, seed):
    """Steps of few rows in bfloat16, of many in E4M3, and layers that are partly both."""
    model, context, beams = drawn(seed=seed, batch=3, **FP8)
    wanted = plain_logits(model, context, beams)
    decoder = StepDecoder(model.decoder, model.config, "cpu", "float8")
    rows = 3 * max(beams.widths)
    sizes = sorted({2 * rows * 48 * width for width in (3 * 96, 96, 2 * 40, 40)})
    before = None
    for least in (*sizes, sizes[-1] + 1):
        monkeypatch.setattr(projection, "LEAST_FP8_FLOPS", least)
        found = step_logits(decoder, context, beams)
        assert_close(found, wanted, TOLERANCES["float8"])
        assert before is None or not all(map(torch.equal, found, before))
        before = found
    assert_close(found, wanted, TOLERANCES["bfloat16"])


@pytest.mark.parametrize("precision", TOLERANCES)
@given(shape=shapes)
def test_a_context_of_its_own_length_is_a_context_cut_there(precision, shape):
    """What stands past a length changes no bit; a request alone, its context cut, is near."""
    shape = shape | {"model_dim": 24, "ffn_dim": 32}
    model, context, beams = drawn(**shape)
    batch, num_context = context.shape[:2]
    draw = torch.Generator().manual_seed(shape["seed"])
    lengths = torch.randint(1, num_context + 1, (batch,), generator=draw).int()
    decoder = StepDecoder(model.decoder, model.config, "cpu", precision)
    found = step_logits(decoder, context, beams, lengths)
    past = torch.arange(num_context) >= lengths[:, None]
    other = context.masked_fill(past[..., None], 1e4)
    assert_equal(step_logits(decoder, other, beams, lengths), found)
    for b, length in enumerate(lengths.tolist()):
        alone = step_logits(decoder, context[b : b + 1, :length], beams.of([b]))
        tolerance = TOLERANCES["float32" if precision == "float32" else "bfloat16"]
        assert_close([logits[b : b + 1] for logits in found], alone, tolerance)


@pytest.mark.parametrize("past_length", [0.0, 1e4, -3e30])
@pytest.mark.parametrize("seed", range(3))
def test_what_stands_past_a_length_scales_nothing(all_in_fp8, seed, past_length):
    model, context, beams = drawn(seed=seed, batch=3, **FP8)
    decoder = StepDecoder(model.decoder, model.config, "cpu", "float8")
    lengths = torch.tensor([1, 4, 9], dtype=torch.int32)
    found = step_logits(decoder, context, beams, lengths)
    past = torch.arange(9) >= lengths[:, None]
    other = context.masked_fill(past[..., None], past_length)
    assert_equal(step_logits(decoder, other, beams, lengths), found)
    for b, length in enumerate(lengths.tolist()):
        alone = step_logits(decoder, context[b : b + 1, :length], beams.of([b]))
        assert_equal([logits[b : b + 1] for logits in found], alone)


def test_ragged_memory_without_lengths_holds_whole_contexts():
    model, context, beams = drawn(seed=1, batch=3, **FP8)
    decoder = StepDecoder(model.decoder, model.config, "cpu", "float32")
    wanted = step_logits(decoder, context, beams)
    memory = decoder.memory(3, beams.widths, context.shape[1], ragged=True)
    assert_close(step_logits(decoder, context, beams, memory=memory), wanted, 1e-5)
    lengths = torch.tensor([1, 2, 3], dtype=torch.int32)
    short = step_logits(decoder, context, beams, lengths, memory)
    assert not torch.equal(short[0], wanted[0])
    assert_close(step_logits(decoder, context, beams, memory=memory), wanted, 1e-5)


@pytest.mark.parametrize("precision", TOLERANCES)
@given(seed=st.integers(0, 1 << 20), batch=st.integers(1, 4))
def test_what_stood_in_memory_changes_nothing(precision, seed, batch):
    """Poison, a search of another batch and garbage beyond a smaller batch."""
    model, context, beams = drawn(seed=seed, batch=4, **FP8)
    decoder = StepDecoder(model.decoder, model.config, "cpu", precision)
    memory = decoder.memory(4, beams.widths, context.shape[1])
    some = beams.of(range(batch))
    clean = step_logits(decoder, context[:batch], some)
    for fill in (torch.nan, torch.inf, -1e30):
        for tensor in (*memory.context, *memory.pools, *memory.value_scales):
            tensor.fill_(fill)
        front = memory.front(batch)
        assert_equal(step_logits(decoder, context[:batch], some, memory=front), clean)
    step_logits(decoder, context, beams, memory=memory)
    front = memory.front(batch)
    assert_equal(step_logits(decoder, context[:batch], some, memory=front), clean)


@pytest.mark.parametrize("precision", TOLERANCES)
def test_neighbours_change_no_bit(all_in_fp8, precision):
    model, context, beams = drawn(seed=3, batch=5, **FP8)
    decoder = StepDecoder(model.decoder, model.config, "cpu", precision)
    wanted = step_logits(decoder, context, beams)
    others = torch.randn(context.shape, generator=torch.Generator().manual_seed(9))
    for b in range(5):
        for fill in (None, torch.nan, torch.inf):
            changed = others.clone() if fill is None else torch.full_like(others, fill)
            changed[b] = context[b]
            mixed = beams.of([(b + i) % 5 for i in range(5)])  # other parents and tokens
            for (parents, tokens), (own_parents, own_tokens) in zip(
                mixed.steps[1:], beams.steps[1:], strict=True
            ):
                parents[b], tokens[b] = own_parents[b], own_tokens[b]
            found = step_logits(decoder, changed, mixed)
            assert_equal([logits[b] for logits in found], [logits[b] for logits in wanted])


@pytest.mark.parametrize("precision", TOLERANCES)
def test_the_order_of_requests_changes_no_bit(all_in_fp8, precision):
    model, context, beams = drawn(seed=4, batch=5, **FP8)
    decoder = StepDecoder(model.decoder, model.config, "cpu", precision)
    wanted = step_logits(decoder, context, beams)
    order = [3, 0, 4, 1, 2]
    found = step_logits(decoder, context[order], beams.of(order))
    assert_equal(found, [logits[order] for logits in wanted])


def test_a_nan_beam_stays_alone():
    """A row whose keys are NaN spoils itself and its children, no other beam of the request."""
    model, context, beams = drawn(seed=5, batch=2, **FP8)
    decoder = StepDecoder(model.decoder, model.config, "cpu", "float32")
    beams.widths, beams.steps = (1, 3, 4, 4), [
        (None, None),
        (torch.zeros(2, 3, dtype=torch.int64), torch.tensor([[1, 2, 3], [4, 5, 6]])),
        (torch.tensor([[0, 1, 1, 2], [2, 2, 0, 1]]), torch.zeros(2, 4, dtype=torch.int64)),
        (torch.tensor([[0, 1, 2, 3], [3, 2, 1, 0]]), torch.zeros(2, 4, dtype=torch.int64)),
    ]  # fmt: skip
    clean = step_logits(decoder, context, beams)
    decoder.inputs[1][2] = torch.nan  # what beam 1 of request 0 begins with
    found = step_logits(decoder, context, beams)
    spoiled = [logits.isnan().all(-1) for logits in found]
    assert [rows.nonzero().tolist() for rows in spoiled[1:]] == [
        [[0, 1]], [[0, 1], [0, 2]], [[0, 1], [0, 2]],
    ]  # fmt: skip
    for logits, want, rows in zip(found, clean, spoiled, strict=True):
        assert torch.equal(logits[~rows], want[~rows])


def test_every_parent_may_be_the_last_beam():
    """Children of one parent share its blocks and write their own."""
    model, context, beams = drawn(seed=6, batch=2, **FP8)
    beams.steps[1:] = [
        (torch.full_like(parents, width - 1), tokens)
        for (parents, tokens), width in zip(beams.steps[1:], beams.widths, strict=False)
    ]
    decoder = StepDecoder(model.decoder, model.config, "cpu", "float32")
    wanted = plain_logits(model, context, beams)
    assert_close(step_logits(decoder, context, beams), wanted, TOLERANCES["float32"])


def test_memory_counts_its_bytes_and_has_a_block_a_beam():
    model, _, _ = drawn(seed=0, batch=1, **FP8)
    decoder = StepDecoder(model.decoder, model.config, "cpu", "bfloat16")
    memory = decoder.memory(4, (1, 3, 9, 9), 9, ragged=True)
    layer = 2 * 3 * 32 * 2
    assert [len(pool) for pool in memory.pools] == [4 * 13] * 2  # none for the last step
    assert memory.num_bytes == 2 * (4 * 9 * layer + 4 * 13 * layer) + 4 * 4 * 4 + 4 * 4
    assert self_attention_paged(
        torch.zeros(4, 3 * 96).bfloat16(), memory.pools[0], memory.first_blocks, 0
    ).shape == (4, 3, 32)


def test_the_weights_are_copies():
    """What becomes of the module later does not reach the steps, and the module stays as it is."""
    model, context, beams = drawn(seed=7, batch=2, **FP8)
    before = copy.deepcopy(model.decoder.state_dict())
    for precision in TOLERANCES:
        decoder = StepDecoder(model.decoder, model.config, "cpu", precision)
        wanted = step_logits(decoder, context, beams)
        assert all(map(torch.equal, model.decoder.state_dict().values(), before.values()))
        with torch.no_grad():
            for parameter in model.decoder.parameters():
                parameter.zero_()
        assert_equal(step_logits(decoder, context, beams), wanted)
        model.decoder.load_state_dict(before)


def test_an_unknown_precision_is_refused():
    model, _, _ = drawn(seed=0, batch=1, **FP8)
    with pytest.raises(ConfigError, match="precision must be one of float32, bfloat16, float8"):
        StepDecoder(model.decoder, model.config, "cpu", "fp8")
