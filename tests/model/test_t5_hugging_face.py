"""A T5's folder: transformers opens ours, we open transformers', logits agree."""

import itertools
import json

import pytest
import safetensors.torch
import torch
import torch.nn.functional as F
from t5_cases import TOKENS, inputs, saved, small_config, small_t5
from transformers import T5Config as TheirConfig
from transformers import T5ForConditionalGeneration

from grace.errors import ConfigError, ModelError
from grace.model.t5 import T5, T5Config, TokenMap, load_hf, save_hf
from grace.model.t5.layers import relative_buckets, relu_layers

FORMS = list(itertools.product((True, False), (True, False), ("relu", "gated-gelu")))


def theirs(model, ids, mask, decoder_input):
    with torch.no_grad():
        return model(
            input_ids=ids, attention_mask=mask.long(), decoder_input_ids=decoder_input
        ).logits


@pytest.mark.parametrize(("tied", "scaled", "feed_forward"), FORMS)
def test_folders_go_both_ways(tmp_path, tied, scaled, feed_forward):
    model = small_t5(
        tie_word_embeddings=tied, scale_decoder_outputs=scaled, feed_forward_proj=feed_forward
    )
    save_hf(model, tmp_path / "ours")
    other = T5ForConditionalGeneration.from_pretrained(tmp_path / "ours").eval()
    other.save_pretrained(tmp_path / "theirs")
    arguments = inputs()
    with torch.no_grad():
        logits = model(*arguments)
    torch.testing.assert_close(logits, theirs(other, *arguments), rtol=1e-5, atol=1e-5)
    for folder in ("ours", "theirs"):
        again = load_hf(tmp_path / folder)
        assert (again.config, again.tokens, again.max_items) == (model.config, TOKENS, 6)
        assert not again.training
        with torch.no_grad():
            assert torch.equal(again(*arguments), logits)


@pytest.mark.parametrize(("tied", "scaled", "feed_forward"), FORMS)
def test_gradients_are_those_of_transformers(tmp_path, tied, scaled, feed_forward):
    """Ours of rows sorted into two lengths, theirs of all rows padded to one."""
    model = small_t5(
        tie_word_embeddings=tied, scale_decoder_outputs=scaled, feed_forward_proj=feed_forward,
        dropout_rate=0.0,
    ).train()  # fmt: skip
    other = T5ForConditionalGeneration.from_pretrained(saved(model, tmp_path)).train()
    ids, mask, decoder_input = inputs(rows=9)
    labels = torch.randint(1, 9, decoder_input.shape, generator=torch.Generator().manual_seed(1))
    order = mask.sum(1).argsort()
    ids, mask, decoder_input = ids[order], mask[order], decoder_input[order]
    short = int(mask[:5].sum(1).max())
    assert short < 25
    pieces = [(ids[:5, :short], mask[:5, :short]), (ids[5:], mask[5:])]
    loss = F.cross_entropy(model.score_pieces(pieces, decoder_input).flatten(0, 1),
                           labels.flatten())  # fmt: skip
    loss.backward()
    wanted = other(
        input_ids=ids, attention_mask=mask.long(), decoder_input_ids=decoder_input, labels=labels
    ).loss
    wanted.backward()
    torch.testing.assert_close(loss, wanted, rtol=1e-6, atol=1e-6)
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(
            parameter.grad, other.get_parameter(name).grad, rtol=1e-5, atol=1e-5, msg=name
        )


@pytest.mark.parametrize("feed_forward", ["relu", "gated-gelu"])
@pytest.mark.parametrize("start", [None, 0, 3])
def test_a_folder_made_by_transformers(tmp_path, feed_forward, start):
    torch.manual_seed(0)
    config = TheirConfig(
        vocab_size=TOKENS.vocab_size, d_model=12, d_kv=5, d_ff=9, num_heads=2, num_layers=2,
        feed_forward_proj=feed_forward, decoder_start_token_id=start,
    )  # fmt: skip
    other = T5ForConditionalGeneration(config).eval()
    other.save_pretrained(tmp_path)
    model = load_hf(tmp_path)
    assert model.tokens is None
    assert (model.config.num_decoder_layers, model.config.dropout_rate) == (2, 0.1)
    assert model.config.decoder_start_token_id == (start or 0)
    with torch.no_grad():
        assert (model(*inputs()) - theirs(other, *inputs())).abs().max() < 1e-5
    assert load_hf(tmp_path, TOKENS, 4).tokens == TOKENS
    assert load_hf(tmp_path, TOKENS, 4).max_items == 4
    with pytest.raises(ModelError, match=r"config\.json: .*vocab_size must be at least 1022"):
        load_hf(tmp_path, TokenMap.of((5, 5, 5), 1005))


@pytest.mark.parametrize("buckets", [4, 8, 32])
@pytest.mark.parametrize("farthest", [17, 20, 128, 200])
@pytest.mark.parametrize("causal", [True, False])
def test_buckets_of_distances(buckets, farthest, causal):
    from transformers.models.t5.modeling_t5 import T5Attention

    config = small_config(
        relative_attention_num_buckets=buckets, relative_attention_max_distance=farthest
    )
    distance = torch.arange(-3 * farthest, 3 * farthest + 1)
    wanted = T5Attention._relative_position_bucket(distance, not causal, buckets, farthest)
    found = relative_buckets(config, causal)[distance.clamp(-farthest, farthest) + farthest]
    assert torch.equal(found, wanted)


def test_an_older_folder_repeats_the_table(tmp_path):
    model = small_t5()
    save_hf(model, tmp_path)
    path = tmp_path / "model.safetensors"
    weights = safetensors.torch.load_file(path)
    table = weights.pop("shared.weight")
    for name in ("encoder.embed_tokens", "decoder.embed_tokens", "lm_head"):
        weights[f"{name}.weight"] = table.clone()
    weights["decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"] = torch.ones(
        8, 3
    )
    safetensors.torch.save_file(weights, path)
    with torch.no_grad():
        assert torch.equal(load_hf(tmp_path)(*inputs()), model(*inputs()))


def test_half_precision_is_read_as_float32(tmp_path):
    model = small_t5().to(torch.bfloat16)
    save_hf(model, tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["dtype"] == "bfloat16"
    with torch.no_grad():
        assert torch.equal(load_hf(tmp_path)(*inputs()), model.float()(*inputs()))


def test_dropout_is_for_training_alone(tmp_path):
    model = load_hf(saved(small_t5(dropout_rate=0.5), tmp_path))
    with torch.no_grad():
        assert torch.equal(model(*inputs()), model(*inputs()))
        model.train()
        assert not torch.equal(model(*inputs()), model(*inputs()))


@pytest.mark.parametrize("rate", [0.0, 0.3])
def test_gradients_of_a_feed_forward_with_dropout(rate):
    draw = torch.Generator().manual_seed(0)
    x, inner, outer = (
        torch.randn(shape, generator=draw, dtype=torch.float64, requires_grad=True)
        for shape in ((5, 4), (6, 4), (3, 6))
    )

    def layers(*arguments):
        torch.manual_seed(1)
        return relu_layers(*arguments, rate)

    assert torch.autograd.gradcheck(layers, (x, inner, outer))
    many = relu_layers(x[:1].expand(4000, -1), inner, outer, rate).mean(0)
    torch.testing.assert_close(many, (x[0] @ inner.T).relu() @ outer.T, rtol=0.1, atol=0.1)


def rewrite(folder, **changes):
    path = folder / "config.json"
    content = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: value for key, value in content.items() if value != "gone"}))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "bart"}, r"config\.json: not a T5: `model_type` is 'bart'"),
        ({"pad_token_id": 3}, r"config\.json: .*pad_token_id must be 0, got 3"),
        ({"eos_token_id": 2}, r"eos_token_id must be 1, got 2"),
        ({"d_model": "gone"}, r"the key 'd_model' is missing"),
        ({"d_model": "wide"}, r"d_model must be a int, got 'wide'"),
        ({"d_model": 0}, r"d_model must be from 1 to"),
        ({"d_model": 24}, r"model\.safetensors: does not fit config\.json: size mismatch"),
        ({"num_layers": 4}, r"does not fit config\.json: .*Missing key"),
        ({"num_layers": 1}, r"does not fit config\.json: .*Unexpected key"),
        ({"feed_forward_proj": "gated-silu"}, r"feed_forward_proj must be one of relu, gated-gelu"),
        ({"grace": {"format_version": 2}}, r"format version 2, this program reads 1"),
        ({"grace": {}}, r"config\.json: cannot be read"),
        ({"grace": 5}, r"config\.json: cannot be read"),
        ({"grace": {"format_version": 1, "max_items": 0, "tokens": {"starts": [9], "sizes": [3]}}},
         r"max_items must be an integer of at least 1, got 0"),
        ({"grace": {"format_version": 1, "max_items": 3, "tokens": {"starts": [1], "sizes": [3]}}},
         r"the block from 0 of 2 reaches into the one from 1"),
    ],
)  # fmt: skip
def test_a_folder_that_is_no_such_model(tmp_path, changes, message):
    save_hf(small_t5(), tmp_path)
    rewrite(tmp_path, **changes)
    with pytest.raises(ModelError, match=message):
        load_hf(tmp_path)


def test_missing_and_torn_files(tmp_path):
    with pytest.raises(ModelError, match=r"config\.json: not found"):
        load_hf(tmp_path)
    save_hf(small_t5(), tmp_path)
    weights = tmp_path / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-1])
    with pytest.raises(ModelError, match=r"model\.safetensors: damaged"):
        load_hf(tmp_path)
    weights.unlink()
    with pytest.raises(ModelError, match=r"model\.safetensors: not found; .* save it in one file"):
        load_hf(tmp_path)
    (tmp_path / "config.json").write_text("[1]")
    with pytest.raises(ModelError, match=r"config\.json: expected an object"):
        load_hf(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ModelError, match=r"config\.json: damaged"):
        load_hf(tmp_path)


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"num_heads": 0}, "num_heads must be from 1"),
        ({"vocab_size": True}, "vocab_size must be a int"),
        ({"dropout_rate": 1.0}, "dropout_rate must be at least 0 and below 1"),
        ({"layer_norm_epsilon": 0.0}, "layer_norm_epsilon must be between 0 and 1"),
        ({"relative_attention_num_buckets": 7}, "must be even and at least 4"),
        ({"relative_attention_max_distance": 4}, "more than its half, got 8 and 4"),
        ({"decoder_start_token_id": 99}, "decoder_start_token_id must be below vocab_size"),
    ],
)
def test_wrong_sizes(sizes, message):
    with pytest.raises(ConfigError, match=message):
        small_config(**sizes)


def test_sizes_of_the_paper():
    """With its four levels of 256 codes and 2,000 users; as many weights as transformers makes."""
    tokens = TokenMap.of((256,) * 4, 2000)
    ours = T5(T5Config(vocab_size=tokens.vocab_size), tokens)
    config = TheirConfig(
        vocab_size=3026, d_model=128, d_kv=64, d_ff=1024, num_heads=6, num_layers=4
    )
    other = T5ForConditionalGeneration(config)
    assert {name: p.shape for name, p in ours.named_parameters()} == {
        name: p.shape for name, p in other.named_parameters()
    }
    for name, parameter in ours.named_parameters():  # drawn alike
        assert parameter.std(correction=0).item() == pytest.approx(
            other.get_parameter(name).std(correction=0).item(), rel=0.1
        )
