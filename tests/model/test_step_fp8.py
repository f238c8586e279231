"""Steps with products in E4M3: who hands whom FP8 rows, and that the result stays near."""

import copy
import itertools

import pytest
import torch
from model_cases import small_index, small_model

from grace.index.trie import Trie
from grace.kernels.fp8_rows import Fp8Rows
from grace.kernels.tuning import pinned
from grace.model import projection, step_decoder
from grace.model.prefix_tables import build_prefix_tables
from grace.model.step_decoder import StepDecoder

SIZES = {
    "num_levels": 3, "vocab_size": 8, "model_dim": 48, "num_heads": 4, "head_dim": 16,
    "ffn_dim": 64, "num_context_tokens": 7, "decoder_layers": 2, "num_recent_tokens": 0,
}  # fmt: skip
WIDTHS, BATCH = (1, 4, 6), 3
TOLERANCE = 0.2  # of a logit, whose standard deviation is about 0.6


@pytest.fixture(autouse=True)
def all_in_fp8(monkeypatch):
    """Every product in E4M3, also those too small for it to pay."""
    monkeypatch.setattr(projection, "LEAST_FP8_FLOPS", 1)


def world(seed):
    """A model, a context, a trie, and the beams of each step as (parents, tokens, nodes)."""
    trie = small_index(seed=seed).trie
    model = small_model(seed=seed, **SIZES)
    draw = torch.Generator().manual_seed(seed)
    context = torch.randn(BATCH, SIZES["num_context_tokens"], SIZES["model_dim"], generator=draw)
    steps, nodes = [(None, None, None)], torch.zeros(BATCH, 1, dtype=torch.int64)
    for before, width in itertools.pairwise(WIDTHS):
        parents = torch.randint(0, before, (BATCH, width), generator=draw)
        tokens, nodes = children(trie, nodes.gather(1, parents), draw)
        steps.append((parents, tokens, nodes))
    return model, context, trie, steps


def children(trie: Trie, nodes, draw):
    """A random child of each node: its token and itself."""
    first, last = trie.child_offsets[nodes].long(), trie.child_offsets[nodes + 1].long()
    entry = first + (torch.rand(nodes.shape, generator=draw) * (last - first)).long()
    return trie.child_tokens[entry].long(), entry + 1


def decoder_of(model, precision="float8", kind=StepDecoder):
    return kind(copy.deepcopy(model.decoder), model.config, "cpu", precision)


@torch.inference_mode()
def logits_of(decoder, context, steps, trie=None, lengths=None):
    memory = decoder.memory(len(context), WIDTHS, context.shape[1], lengths is not None)
    for tensor in (*memory.context, *memory.pools, *memory.value_scales):
        tensor.fill_(torch.nan)
    decoder.load(memory, context, lengths)
    tables = None if trie is None else build_prefix_tables(decoder, trie, 1 << 30)
    state = decoder.start(memory, tables)
    return [decoder.step(state, *beams[:2], t, beams[2]) for t, beams in enumerate(steps)]


def assert_near(found, wanted, tolerance=TOLERANCE):
    for logits, want in zip(found, wanted, strict=True):
        torch.testing.assert_close(logits.float(), want.float(), rtol=0, atol=tolerance)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("with_tables", [False, True])
def test_all_that_is_added_to_the_stream_comes_in_fp8(monkeypatch, seed, with_tables):
    model, context, trie, steps = world(seed)
    trie = trie if with_tables else None
    wanted = logits_of(decoder_of(model, "float32"), context, steps)
    decoder = decoder_of(model)
    monkeypatch.setattr(projection.Projection, "add_to", only_fp8(projection.Projection.add_to))
    found = logits_of(decoder, context, steps, trie)
    assert_near(found, wanted)
    assert any(not torch.equal(a.float(), b) for a, b in zip(found, wanted, strict=True))


def only_fp8(add_to):
    def checked(self, stream, x):
        assert isinstance(x, Fp8Rows)
        return add_to(self, stream, x)

    return checked


class Plain(StepDecoder):
    """Attention as a subclass may do it, with results in the loop's dtype."""

    def attend_prefix(self, i, qkv, state, t):
        follows = t + 1 < self.config.num_levels
        found = step_decoder.self_attention_paged(
            qkv, state.memory.pools[i], state.blocks, t, keep=follows
        )
        assert found.shape == (len(qkv), SIZES["num_heads"], SIZES["head_dim"])
        return found

    def attend_context(self, i, query, state):
        key, value = state.memory.context[i].transpose(1, 3).unbind(2)
        heads = query.view(BATCH, -1, SIZES["num_heads"], SIZES["head_dim"])
        return step_decoder.cross_attention(heads, key, value).flatten(0, 1).flatten(1)


class Narrow(StepDecoder):
    """Counts what comes as FP8 rows."""

    count = 0

    def attend_prefix(self, *arguments):
        return self.counted(super().attend_prefix(*arguments))

    def attend_context(self, *arguments):
        return self.counted(super().attend_context(*arguments))

    def counted(self, heads):
        assert isinstance(heads, Fp8Rows)
        assert heads.values.shape[1] == SIZES["num_heads"] * SIZES["head_dim"]
        self.count += 1
        return heads


def test_hooks_may_return_tensors_or_fp8_rows():
    model, context, _, steps = world(5)
    wanted = logits_of(decoder_of(model, "float32"), context, steps)
    assert_near(logits_of(decoder_of(model, kind=Plain), context, steps), wanted)
    narrow = decoder_of(model, kind=Narrow)
    assert_near(logits_of(narrow, context, steps), wanted)
    assert narrow.count == len(WIDTHS) * SIZES["decoder_layers"] * 2


@pytest.mark.parametrize("gate_up", [False, True])
@pytest.mark.parametrize("down", [False, True])
def test_swiglu_stores_e4m3_where_both_its_sides_are(monkeypatch, gate_up, down):
    model, context, _, steps = world(6)
    decoder = decoder_of(model)
    stored = []
    for layer in decoder.layers:
        layer.gate_up.takes_fp8 = lambda rows: gate_up
        layer.down.takes_fp8 = lambda rows: down
        swiglu = layer.gate_up.swiglu

        def spied(x, swiglu=swiglu):
            gated = swiglu(x)
            stored.append((isinstance(x, Fp8Rows), isinstance(gated, Fp8Rows)))
            return gated

        layer.gate_up.swiglu = spied
    found = logits_of(decoder, context, steps)
    assert set(stored) == {(gate_up, gate_up and down)}
    assert_near(found, logits_of(decoder_of(model, "float32"), context, steps))


def test_a_gate_with_huge_weights_costs_the_others_nothing():
    """Where E4M3 is not used, its weights are the same function to the last bit."""
    model, context, _, steps = world(10)
    with torch.no_grad():
        for layer in model.decoder.layers:
            gate_up = layer.feed_forward.gate_up.weight
            gate_up[0] *= 1000  # of the first gate
            layer.feed_forward.down.weight[:, 0] /= 1000
    decoder = decoder_of(model)
    wanted = logits_of(decoder_of(model, "float32"), context, steps)
    assert_near(logits_of(decoder, context, steps), wanted)
    projection.LEAST_FP8_FLOPS = 1 << 60  # the fixture puts it back
    same = logits_of(decoder_of(model, "bfloat16"), context, steps)
    for logits, want in zip(logits_of(decoder, context, steps), same, strict=True):
        assert torch.equal(logits, want)


def test_a_product_is_added_to_the_stream_at_once_or_later():
    model, context, trie, steps = world(11)
    wanted = logits_of(decoder_of(model, "float32"), context, steps)
    found = []
    for how in projection.ADDITIONS:
        with pinned(lambda candidates, how=how: how if how in candidates else candidates[0]):
            decoder = decoder_of(model)
            found.append(logits_of(decoder, context, steps))
            tabled = logits_of(decoder, context, steps, trie)
        assert_near(found[-1], wanted)
        assert_near(tabled, wanted)
    assert_near(found[0], found[1], 0.1)
    assert not all(map(torch.equal, *found))  # one rounding less


def test_what_stands_past_a_length_changes_no_bit():
    """Neither as keys and values nor by the scale that values give a request's rows."""
    model, context, _, steps = world(7)
    decoder = decoder_of(model)
    lengths = torch.tensor([1, 7, 4], dtype=torch.int32)
    wanted = logits_of(decoder, context, steps, lengths=lengths)
    past = torch.arange(7) >= lengths[:, None]
    other = context.masked_fill(past[..., None], 1e4)
    for logits, want in zip(logits_of(decoder, other, steps, lengths=lengths), wanted, strict=True):
        assert torch.equal(logits, want)


def test_a_request_of_nan_stays_alone():
    model, context, _, steps = world(8)
    decoder = decoder_of(model)
    wanted = logits_of(decoder, context, steps)
    spoilt = context.clone()
    spoilt[1, 2] = torch.nan
    for logits, want in zip(logits_of(decoder, spoilt, steps), wanted, strict=True):
        assert logits[1].isnan().all()
        assert torch.equal(logits[[0, 2]], want[[0, 2]])


def test_only_float8_keeps_scales_of_values():
    model, *_ = world(9)
    assert decoder_of(model, "bfloat16").memory(2, WIDTHS, 7).value_scales == []
    memory = decoder_of(model).memory(2, WIDTHS, 7)
    assert [scales.tolist() for scales in memory.value_scales] == [[1, 1]] * 2
    assert [len(scales) for scales in memory.front(1).value_scales] == [1, 1]
    assert decoder_of(model, "bfloat16").layers[0].gate_bound is None
