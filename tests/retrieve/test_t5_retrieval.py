"""A T5 folder through the whole of retrieval: what unmodified transformers generates, exactly."""

import json

import numpy as np
import pytest
import torch
from model_cases import SCHEMA, small_index, small_model
from t5_cases import TOKENS, histories, saved, small_t5
from test_faults_swap import in_threads

import grace
from benchmarks.peers.t5 import HuggingFaceT5, assert_alike
from grace.errors import ConfigError, ModelError
from grace.index import MATCHERS
from grace.model import EncoderDecoder, save_model
from grace.model.folder import open_model
from grace.model.t5 import T5, T5Config, TokenMap, shifted

FORMS = [
    {}, {"tie_word_embeddings": False}, {"feed_forward_proj": "gated-gelu"},
    {"scale_decoder_outputs": False, "decoder_start_token_id": 2}, {"d_model": 33, "d_kv": 16},
]  # fmt: skip


def assert_found(results, generated):
    """What transformers finds, best first; ties within rounding may stand in another order."""
    for i, result in enumerate(results):
        assert result.error is None
        assert_alike(dict(result.sids), generated.found(i), 1e-4)
        ordered = [score for _, score in result.sids]
        assert ordered == sorted(ordered, reverse=True)


def encoded(model, requests, index):
    features = grace.model.t5.features.HistoryFeatures(model.tokens, model.max_items)
    inputs, _ = features.encode([request["features"] for request in requests], index)
    return inputs["input_ids"], inputs["mask"]


@pytest.mark.parametrize("sizes", FORMS, ids=str)
@pytest.mark.parametrize("beams", [2, 3, 20])
def test_it_finds_what_transformers_generates(tmp_path, sizes, beams):
    index, requests = small_index(), histories(4)
    model = small_t5(**sizes)
    folder = saved(model, tmp_path)
    plan = grace.BeamPlan((1, beams, beams), beams)
    results = grace.Retriever(index, folder, plan, "valid").retrieve(requests)
    wanted = HuggingFaceT5(folder, index).generate(*encoded(model, requests, index), beams)
    assert_found(results, wanted)


@pytest.fixture(scope="module")
def toy(tmp_path_factory):
    """Trained to write the item that follows the history's last: scores far apart, and sharp."""
    index = small_index(num_ads=40, num_levels=4, num_codes=6)
    tokens = TokenMap.of((6,) * 4, 5)
    model = small_t5(tokens, num_layers=1, num_decoder_layers=1, d_model=24, dropout_rate=0.0)
    requests = [{"id": i, "features": {"history": [i], "user": i}} for i in range(39)]
    ids, mask = encoded(model, requests, index)
    following = index.sids[np.asarray(index.ad_sid)[index.find_ads(list(range(1, 40)))]]
    target = tokens.tokens(torch.from_numpy(following))
    optimiser = torch.optim.Adam(model.train().parameters(), lr=0.01)
    for _ in range(60):
        optimiser.zero_grad()
        logits = model(ids, mask, shifted(target))
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), target.flatten())
        loss.backward()
        optimiser.step()
    folder = saved(model, tmp_path_factory.mktemp("toy"))
    generated = HuggingFaceT5(folder, index).generate(ids, mask, 16)
    return index, folder, requests, list(map(tuple, following.tolist())), generated


@pytest.mark.parametrize("batch_size", [1, 3, 16])
def test_a_trained_toy_agrees_too(toy, batch_size):
    index, folder, requests, following, generated = toy
    plan = grace.BeamPlan((1, 16, 16, 16), 16)
    retriever = grace.Retriever(index, folder, plan, "valid", batch_size=batch_size)
    results = retriever.retrieve(requests)
    assert_found(results, generated)
    found = [result.sids[0][0] for result in results]
    assert np.mean([one == other for one, other in zip(found, following, strict=True)]) > 0.8


@pytest.mark.parametrize("matching", MATCHERS)
def test_every_mode(matching):
    """Rules are obeyed, and modes inside the trie agree about what all of them may return."""
    sids = np.random.default_rng(0).integers(0, 5, (60, 3))
    rows = [
        {"ad_id": i, "sid": sid.tolist(), "rules": {"age": {"min": 10 * (i % 6)}}}
        for i, sid in enumerate(sids)
    ]
    index, model = grace.build_index(rows, SCHEMA), small_t5()
    plan = grace.BeamPlan((1, 5, 25), 125)
    requests = [r | {"attributes": {"age": 15 + 10 * i}} for i, r in enumerate(histories(4))]
    results = grace.Retriever(index, model, plan, matching).retrieve(requests, trace=True)
    for i, result in enumerate(results):
        assert {ad.ad_id for ad in result.ads} == {a for a in range(60) if a % 6 <= 1 + i}
        known = [item for item in requests[i]["features"]["history"] if item < 60]
        unknown = len(requests[i]["features"]["history"]) - len(known)
        assert result.funnel["unknown_items"] == unknown


def test_a_wrong_request_fails_alone():
    requests = histories(3)
    wanted = grace.Retriever(small_index(), small_t5(), batch_size=2).retrieve(requests[::2])
    requests[1]["features"] = {"history": [1, None]}
    results = grace.Retriever(small_index(), small_t5(), batch_size=2).retrieve(requests)
    assert results[1].error["field"] == "features.history[1]"
    assert [r.sids for r in results[::2]] == [r.sids for r in wanted]


def test_threads_share_a_retriever():
    index, requests = small_index(), histories(9)
    retriever = grace.Retriever(index, small_t5(), batch_size=3)
    wanted = [result.sids for result in retriever.retrieve(requests)]

    def ask():
        assert [result.sids for result in retriever.retrieve(requests)] == wanted

    in_threads(2, ask, ask, ask)


def test_a_folder_is_opened_by_its_config(tmp_path):
    assert isinstance(open_model(saved(small_t5(), tmp_path / "t5")), T5)
    save_model(small_model(), tmp_path / "own")
    assert isinstance(open_model(tmp_path / "own"), EncoderDecoder)
    with pytest.raises(ModelError, match=r"config\.json: not found"):
        open_model(tmp_path / "none")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    with pytest.raises(ModelError, match=r"config\.json: not a model of Grace"):
        open_model(tmp_path)


def test_what_does_not_fit():
    index = small_index()
    with pytest.raises(ModelError, match="the model writes SIDs of 2 tokens"):
        grace.Retriever(index, small_t5(TokenMap.of((5, 5))))
    with pytest.raises(ModelError, match="the model has 4 codes at level 1, the index's largest"):
        grace.Retriever(index, small_t5(TokenMap.of((5, 4, 5))))
    with pytest.raises(ConfigError, match="precision must be auto or float32 for a T5"):
        grace.Retriever(index, small_t5(), precision="bfloat16")
    with pytest.raises(ModelError, match=r"load_hf\(folder, tokens="):
        grace.Retriever(index, T5(T5Config(vocab_size=TOKENS.vocab_size)))
