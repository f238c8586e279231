"""T5 as retrieval runs it computes what the module computes, whatever its sizes."""

import itertools

import pytest
import torch
from model_cases import small_index
from t5_cases import TOKENS, histories, small_t5

from grace.errors import ModelError
from grace.model.t5 import TokenMap, shifted
from grace.model.t5.generator import T5Generator


def encoded(generator, number, seed=0):
    features = [request["features"] for request in histories(number, seed=seed)]
    return generator.features.encode(features, small_index())[0]


def followed(generator, inputs, parents, codes):
    """Logits and normalisers along given beams."""
    buffers = generator.prefill(inputs)
    return [
        generator.decode(buffers, parent, code, t)
        for t, (parent, code) in enumerate(zip(parents, codes, strict=True))
    ]


def random_beams(widths, batch, codes, seed=0):
    """Parents and tokens of each step, and the prefixes that they make, `[B, M, t]`."""
    draw = torch.Generator().manual_seed(seed)
    parents, tokens, prefixes = [None], [None], [torch.empty(batch, 1, 0, dtype=torch.int64)]
    for t, (before, width) in enumerate(itertools.pairwise(widths)):
        parents.append(torch.randint(before, (batch, width), generator=draw))
        tokens.append(torch.randint(codes, (batch, width), generator=draw))
        kept = prefixes[-1].gather(1, parents[-1][..., None].expand(-1, -1, t))
        prefixes.append(torch.cat([kept, tokens[-1][..., None]], 2))
    return parents, tokens, prefixes


SHAPES = [
    {}, {"d_model": 7, "d_kv": 3, "num_heads": 5}, {"num_decoder_layers": 1, "d_kv": 17},
    {"feed_forward_proj": "gated-gelu"}, {"tie_word_embeddings": False},
    {"scale_decoder_outputs": False, "decoder_start_token_id": 4},
]  # fmt: skip


@pytest.mark.parametrize("sizes", SHAPES, ids=str)
@pytest.mark.parametrize("batch", [1, 3])
def test_steps_equal_teacher_forcing(sizes, batch):
    model = small_t5(**sizes)
    generator, start = T5Generator(model), model.config.decoder_start_token_id
    inputs = encoded(generator, batch)
    parents, codes, prefixes = random_beams((1, 4, 9), batch, 5)
    for t, (columns, normaliser) in enumerate(followed(generator, inputs, parents, codes)):
        for m in range(prefixes[t].shape[1]):
            whole = torch.zeros(batch, 3, dtype=torch.int64)
            whole[:, :t] = prefixes[t][:, m]
            with torch.no_grad():
                wanted = model(
                    inputs["input_ids"], inputs["mask"], shifted(TOKENS.tokens(whole), start)
                )[:, t]
            first = TOKENS.starts[t]
            torch.testing.assert_close(
                columns[:, m], wanted[:, first : first + 5], rtol=1e-5, atol=1e-5
            )
            torch.testing.assert_close(
                normaliser[:, m], wanted.double().logsumexp(-1), rtol=1e-5, atol=1e-5
            )


def test_a_level_of_fewer_codes_ends_in_minus_infinity():
    tokens = TokenMap.of((5, 2, 4))
    generator = T5Generator(small_t5(tokens))
    assert generator.config == (3, 5)
    steps = followed(generator, encoded(generator, 2), *random_beams((1, 2, 2), 2, 2)[:2])
    finite = [columns.isfinite().all(0).all(0).tolist() for columns, _ in steps]
    assert finite == [[True] * n + [False] * (5 - n) for n in (5, 2, 4)]


def test_neighbours_change_no_bit():
    generator = T5Generator(small_t5())
    alone, beams = encoded(generator, 4), random_beams((1, 4, 9), 4, 5)[:2]
    wanted = followed(generator, alone, *beams)
    other = encoded(generator, 4, seed=1)
    for name, tensor in other.items():
        tensor[2] = alone[name][2]
    for (columns, normaliser), (mine, my_normaliser) in zip(
        followed(generator, other, *beams), wanted, strict=True
    ):
        assert torch.equal(columns[2], mine[2])
        assert torch.equal(normaliser[2], my_normaliser[2])


def test_it_is_a_copy():
    model = small_t5()
    generator = T5Generator(model.train())
    inputs, beams = encoded(generator, 2), random_beams((1, 2, 2), 2, 5)[:2]
    before = followed(generator, inputs, *beams)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(2)
    after = followed(generator, inputs, *beams)
    assert all(torch.equal(a, b) for one, two in zip(before, after, strict=True)
               for a, b in zip(one, two, strict=True))  # fmt: skip
    assert model.training


def test_a_model_without_tokens():
    model = small_t5()
    model.tokens = None
    with pytest.raises(ModelError, match="does not say which token is which code"):
        T5Generator(model)


def test_a_changed_model():
    model = small_t5()
    model.decoder.block[0].layer[0].SelfAttention.q.register_forward_hook(lambda *_: None)
    with pytest.raises(ModelError, match=r"decoder\.block\.0\.layer\.0\.SelfAttention\.q was chan"):
        T5Generator(model)


def test_one_compiled_graph_for_every_batch_of_a_shape():
    """Nothing in the training forward depends on data: no graph breaks."""
    model = small_t5()
    generator = T5Generator(model)
    explained = torch._dynamo.explain(model)
    inputs = encoded(generator, 3)
    found = explained(inputs["input_ids"], inputs["mask"], torch.zeros(3, 3, dtype=torch.int64))
    assert found.graph_break_count == 0
