"""The causal model: no place sees a later one; searches agree with both heads by brute force."""

import dataclasses
import json

import numpy as np
import pytest
import torch
from causal_cases import SIDS, sid_log_prob
from sequence_cases import NUM_ITEMS, item_id, item_sids

import grace
from grace.errors import ConfigError, ModelError, RequestError
from grace.model.causal import Causal, CausalConfig, CausalGenerator, load_causal, save_causal
from grace.model.folder import open_model

IDS = torch.tensor([item_id(item) for item in range(NUM_ITEMS)])
SHARES = [0.0, 0.4, 1.0]


def small_causal(**sizes) -> Causal:
    torch.manual_seed(0)
    defaults = {"num_levels": 3, "vocab_size": int(SIDS.max()) + 1, "max_items": 6,
                "model_dim": 16, "ffn_dim": 32, "decoder_layers": 2}  # fmt: skip
    model = Causal(CausalConfig(**defaults | sizes), SIDS, IDS)
    with torch.no_grad():  # far from uniform
        for parameter in model.parameters():
            parameter += 0.3 * torch.randn_like(parameter)
    return model.eval()


def log_probs(model: Causal, history: list[int]) -> torch.Tensor:
    """`[N]`, the log-probability of each item's SID by the shares of both heads, one by one."""
    config = model.config
    vectors = model.item_vectors()
    hidden = model.encode([torch.tensor([history])], vectors)[-1]
    total = torch.tensor(
        [sid_log_prob(model, hidden, sid, vectors) for sid in SIDS.tolist()], dtype=torch.float64
    )
    scores = (vectors @ hidden).double()
    if config.exclude_history:
        scores[history] = -torch.inf
    probs = scores.softmax(0)
    same = (SIDS[:, None] == SIDS).all(2)
    dense = (probs * same).sum(1).log()
    if not config.dense_score:
        return total
    return (1 - config.dense_score) * total + config.dense_score * dense


def shares(share: float) -> dict[str, float]:
    return {"dense_loss": share, "dense_score": share}


def test_no_place_sees_a_later_one():
    model = small_causal()
    vectors = model.item_vectors()
    first = torch.tensor([[3, 9, 1, 7]])
    second = torch.tensor([[3, 9, 20, -1]])
    found = [model.encode([items], vectors) for items in (first, second, first[:, :2])]
    torch.testing.assert_close(found[0][:2], found[1][:2])
    torch.testing.assert_close(found[0][:2], found[2])
    assert not torch.allclose(found[0][2], found[1][2])


def test_an_items_vector_is_the_sum_of_its_embeddings():
    sizes = (SIDS.max(0).values + 1).tolist()
    for with_items in (True, False):
        model = small_causal(item_embeddings=with_items)
        for item in (0, 17):
            wanted = sum(
                model.codes.weight[sum(sizes[:level]) + code]
                for level, code in enumerate(SIDS[item].tolist())
            )
            if with_items:
                wanted = wanted + model.items.weight[item]
            torch.testing.assert_close(model.item_vectors()[item], wanted)


@pytest.mark.parametrize("exclude", [False, True])
@pytest.mark.parametrize("share", SHARES)
def test_retrieval_finds_what_brute_force_finds(share, exclude, tmp_path):
    model = small_causal(exclude_history=exclude, **shares(share))
    save_causal(model, tmp_path)
    distinct = np.unique(item_sids(), axis=0)
    index = grace.build_index(
        [{"ad_id": int(ad), "sid": sid.tolist(), "rules": {}} for ad, sid in
         zip(IDS, SIDS, strict=True)],
        {"attributes": [{"name": "age", "kind": "range"}]},
    )  # fmt: skip
    plan = grace.BeamPlan((1, 6, 36), len(distinct))
    retriever = grace.Retriever(index, tmp_path, plan, "valid", batch_size=4)
    histories = [[5], [3, 9, 1], [0, 1, 2, 3, 4, 30]]
    requests = [
        {"id": i, "attributes": {}, "features": {"history": [item_id(x) for x in history]}}
        for i, history in enumerate(histories)
    ]
    for history, result in zip(histories, retriever.retrieve(requests), strict=True):
        with torch.no_grad():
            wanted = log_probs(model, history)
        best: dict[tuple, float] = {}
        for sid, score in zip(SIDS.tolist(), wanted.tolist(), strict=True):
            if score > -np.inf:
                best[tuple(sid)] = score
        found: dict[tuple, float] = {}
        for ad in result.ads:
            found.setdefault(tuple(ad.sid), ad.score)
        assert set(found) == set(best)
        for sid, score in found.items():
            assert score == pytest.approx(best[sid], abs=1e-4)


def test_a_request_without_a_history_ranks_without_one():
    model = small_causal(exclude_history=True)
    generator = CausalGenerator(model)
    inputs, unknown = generator.features.encode([{}, {"history": [1, "x", item_id(3)]}], None)
    assert unknown == [0, 2]
    assert inputs["history"].tolist() == [[-1] * 6, [3, *[-1] * 5]]
    buffers = generator.prefill(inputs)
    assert (buffers.hidden[0] == 0).all()
    leaves = buffers.weights[-1][0].exp()
    assert leaves.sum() == pytest.approx(1)
    assert leaves.min() == pytest.approx(1 / NUM_ITEMS)
    with pytest.raises(RequestError, match="expected a list of ad ids"):
        generator.features.check({"history": 3})


def test_the_newest_items_of_a_long_history_are_read():
    features = CausalGenerator(small_causal()).features
    history = [item_id(x) for x in range(9)]
    assert features.encode([{"history": history}], None)[0]["history"].tolist() == [[*range(3, 9)]]


@pytest.mark.parametrize("exclude", [False, True])
def test_prefixes_weigh_what_their_items_weigh(exclude):
    generator = CausalGenerator(small_causal(exclude_history=exclude))
    history = torch.tensor([[7, 2, -1]])
    masses = generator.prefill({"history": history}).weights
    for level, mass in enumerate(masses):
        assert mass.exp().sum() == pytest.approx(1)
        assert mass.shape == (1, len(np.unique(item_sids()[:, :level], axis=0)) if level else 1)
    gone = [item for item in (7, 2) if (SIDS[item] == SIDS).all(1).sum() == 1]
    table = {tuple(sid): i for i, sid in enumerate(np.unique(item_sids(), axis=0).tolist())}
    for item in gone:
        assert (masses[-1][0, table[tuple(SIDS[item].tolist())]] == -torch.inf) == exclude


def test_a_folder_gives_the_model_back(tmp_path):
    model = small_causal()
    save_causal(model, tmp_path)
    again = load_causal(tmp_path)
    assert again.config == model.config
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, again.state_dict()[name])
    assert isinstance(open_model(tmp_path), CausalGenerator)
    content = json.loads((tmp_path / "config.json").read_text())
    for change, message in (
        ({"format_version": 2}, "of version 1, got grace-causal of version 2"),
        ({"model": content["model"] | {"width": 3}}, "damaged: model: unknown key 'width'"),
        ({"model": content["model"] | {"model_dim": 8}}, "damaged"),
    ):
        (tmp_path / "config.json").write_text(json.dumps(content | change))
        with pytest.raises(ModelError, match=message):
            open_model(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(content))
    (tmp_path / "model.safetensors").write_bytes(b"torn")
    with pytest.raises(ModelError, match="damaged"):
        open_model(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(ModelError, match=r"model\.safetensors"):
        open_model(tmp_path)


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"num_heads": 3}, "num_heads must divide model_dim"),
        ({"dropout": 1.0}, "dropout must be at least 0 and below 1"),
        ({"dense_score": 1.5}, "dense_score must be from 0 to 1"),
        ({"dense_loss": 0.0}, "dense_score must be 0 where dense_loss is: the dense head"),
        ({"dense_loss": 1.0}, "dense_score must be 1 where dense_loss is: the SID decoder"),
        ({"decoder_layers": 0}, "decoder_layers must be from 1 to"),
    ],
)
def test_wrong_sizes_are_refused(sizes, message):
    with pytest.raises(ConfigError, match=message):
        dataclasses.replace(small_causal().config, **sizes)
