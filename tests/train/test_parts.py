"""The parts of the training loop, one by one."""

import numpy as np
import pytest
import torch
from model_cases import SPEC as ALL_KINDS
from model_cases import random_features, small_index, small_model
from train_cases import INDEX, SPEC, train_rows, valid_rows

from grace.errors import ConfigError, DataError, TrainError
from grace.model import EncoderDecoder
from grace.model.fields import FIRST_VALUE, MISSING, PADDING, UNKNOWN
from grace.train import RunConfig, TrainConfig
from grace.train.examples import ExampleSet
from grace.train.hide import hide_
from grace.train.loss import num_targets, sid_loss
from grace.train.optimiser import learning_rate, make_optimiser
from grace.train.recall import validate
from grace.train.rows import ExampleRows
from grace.train.state import TrainState


def test_the_loss_is_the_mean_over_levels_and_the_sum_over_targets():
    logits = torch.randn(2, 2, 3, 5, dtype=torch.float64)
    sids = torch.tensor([[[0, 1, 2], [4, 4, 4]], [[3, 0, 1], [-1, -1, -1]]])
    log_probs = torch.log_softmax(logits, -1)
    expected = -sum(
        log_probs[b, k, t, sids[b, k, t]]
        for b, k in ((0, 0), (0, 1), (1, 0))
        for t in range(3)
    ) / 3  # fmt: skip
    torch.testing.assert_close(sid_loss(logits, sids), expected.float())
    assert num_targets(sids) == 3


def test_recall_and_loss_agree_with_scoring_every_sid():
    read = ExampleRows.read(valid_rows(20))
    spec = ExampleRows.read(train_rows()).fit(SPEC)
    examples = ExampleSet.build(read, spec, INDEX)
    torch.manual_seed(3)
    model = EncoderDecoder(small_model().config, spec).eval()
    inputs, _ = spec.encode(read.features, INDEX)
    sids = torch.from_numpy(INDEX.sids.astype(np.int64))
    with torch.no_grad():
        log_probs = torch.log_softmax(model(inputs, sids.expand(20, -1, -1)), -1)
    scores = log_probs.gather(-1, sids.expand(20, -1, -1)[..., None]).sum((-1, -2))
    targets = INDEX.find_ads(read.targets)
    of_target = scores[torch.arange(20), torch.from_numpy(INDEX.ad_sid[targets].astype(np.int64))]
    for k in (1, 5, 20):
        hits = 0
        for b, target in enumerate(targets):
            ranked = sorted(
                range(INDEX.num_ads), key=lambda ad, b=b: (-scores[b, INDEX.ad_sid[ad]], ad)
            )
            hits += ranked.index(target) < k
        found = validate(model, examples, INDEX, k, INDEX.num_sids, 7, "cpu")
        assert found.recall == hits / 20
        assert found.loss == pytest.approx(-of_target.mean().item() / 3, rel=1e-5)


def test_hiding_trains_the_rows_of_unknown_and_missing_and_nothing_else():
    rng = np.random.default_rng(0)
    rows = [random_features(rng) for _ in range(2000)]
    inputs, _ = ALL_KINDS.encode(rows, small_index())
    before = {name: tensor.clone() for name, tensor in inputs.items()}
    hide_(inputs, ALL_KINDS, 0.2, torch.Generator().manual_seed(0))
    for name in ("gender", "clicks.actions"):
        known = before[name] >= FIRST_VALUE
        for row in (UNKNOWN, MISSING):
            share = (inputs[name][known] == row).float().mean()
            assert 0.06 < share < 0.14
        assert torch.equal(inputs[name][~known], before[name][~known])
    assert torch.equal(inputs["clicks.tokens"], before["clicks.tokens"])
    assert torch.equal(inputs["clicks.valid"], before["clicks.valid"])
    assert (inputs["clicks.gaps"][before["clicks.gaps"] == PADDING] == PADDING).all()
    was_number = ~before["age"].isnan()
    assert 0.06 < inputs["age"][was_number].isnan().float().mean() < 0.14
    whole = (inputs["genres"] == torch.tensor([MISSING, PADDING, PADDING])).all(1)
    assert whole.sum() > (before["genres"][:, 0] == MISSING).sum() + 50
    nothing = {name: tensor.clone() for name, tensor in before.items()}
    hide_(nothing, ALL_KINDS, 0.0, torch.Generator())
    assert all(torch.equal(nothing[n].nan_to_num(9), before[n].nan_to_num(9)) for n in before)


def test_the_learning_rate_rises_and_falls():
    config = TrainConfig(learning_rate=1.0, warmup_share=0.1)
    rates = [learning_rate(config, step, 100) for step in range(100)]
    assert rates[:10] == pytest.approx([0.1 * (i + 1) for i in range(10)])
    assert rates[9:] == sorted(rates[9:], reverse=True)
    assert 0.05 <= rates[-1] < 0.06
    assert learning_rate(TrainConfig(warmup_share=0.0, learning_rate=1.0), 0, 1) == 1.0


def test_only_weight_matrices_decay():
    model = small_model(ALL_KINDS)
    decayed, others = make_optimiser(model, TrainConfig()).param_groups
    assert (decayed["weight_decay"], others["weight_decay"]) == (0.1, 0.0)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    assert len(decayed["params"]) + len(others["params"]) == len(names)
    for parameter in others["params"]:
        name = names[id(parameter)]
        kinds = ("bias", "norm", "rows", "actions", "gaps", "positions", "start", "queries",
                 "missing", "tokens", "products.0")  # fmt: skip
        assert any(kind in name for kind in kinds), name
    assert all(parameter.dim() == 2 for parameter in decayed["params"])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("epochs = 3", "expected the tables [model] and [train], got 'epochs'"),
        ("[trian]", "got 'trian'"),
        ("model = 3", "got 'model'"),
        ("[train]\nepoch = 3", "[train]: unknown key 'epoch'; known keys: epochs, batch_size"),
        ("[train]\nepochs = 0", "[train]: epochs must be at least 1, got 0"),
        ("[train]\nepochs = true", "[train]: epochs must be a int, got True"),
        ("[train]\nlearning_rate = nan", "[train]: learning_rate must be above 0"),
        ("[train]\nhide_share = 1.0", "[train]: hide_share must be at least 0 and below 1"),
        ("[train]\nweight_decay = -0.1", "[train]: weight_decay must be at least 0"),
        ("[train]\ntargets_per_cut = 1001", "[train]: targets_per_cut must be at most 1000"),
        ("[train]\nbatch_size = 0x1" + "0" * 5000, "[train]: batch_size must be at most"),
        ("[train]\nepochs = " + "9" * 5000, "config.toml: Exceeds the limit"),
        ("a = " + "[" * 5000, "config.toml: "),
        ("[model]\nmodel_dims = 3", "[model]: unknown key 'model_dims'"),
        ("[model]\ndropout = 2", "[model]: dropout must be at least 0 and below 1"),
        ("[model", "config.toml: "),
    ],
)
def test_a_wrong_configuration_is_refused(tmp_path, text, message):
    path = tmp_path / "config.toml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        RunConfig.load(path)
    assert message in str(caught.value)
    assert str(path) in str(caught.value)


def test_a_configuration_loads(tmp_path):
    path = tmp_path / "config.toml"
    path.write_text("\ufeff[model]\nmodel_dim = 32\n[train]\nlearning_rate = 1\nseed = 7\n")
    config = RunConfig.load(path)
    assert config.model_config(3, 9).model_dim == 32
    assert (config.train.learning_rate, config.train.seed) == (1, 7)
    path.write_text("")
    assert RunConfig.load(path) == RunConfig()


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"features": {"age": ' + "9" * 5000 + "}}", "row 2: not JSON: Exceeds the limit"),
        ('{"features": ' + "[" * 100_000, "row 2: not JSON: "),
        ('{"features": {}, "target": 1.5}', "row 2: target: expected a string or an integer"),
        (r'{"features": {}, "target": "\ud800"}', "row 2: target: expected text that UTF-8"),
        (r'{"features": {"group": "\ud800"}}', "row 2: features.group: expected text that UTF-8"),
        (
            r'{"features": {"history": [{"ad_id": 1, "action": "\ud800"}]}}',
            "row 2: features.history",
        ),
    ],
    ids=lambda text: text[:40],
)
def test_a_wrong_row_is_named(tmp_path, line, message):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"features": {}}\n' + line)
    with pytest.raises(DataError) as caught:
        ExampleRows.read(path).fit(SPEC)
    assert f"{path}: {message}" in str(caught.value)


def test_rows_may_begin_with_a_byte_order_mark(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text('\ufeff{"features": {}}\n')
    assert ExampleRows.read(path).features == [{}]


def test_every_flipped_bit_of_a_state_is_noticed(tmp_path):
    state = TrainState(identity={"a": 1}, history=[{"epoch": 1}], model={"w": torch.ones(3)},
                       optimiser={})  # fmt: skip
    state.save(tmp_path)
    assert TrainState.load(tmp_path).identity == {"a": 1}
    path = tmp_path / "resume.pt"
    whole = path.read_bytes()
    for place in range(len(whole)):
        path.write_bytes(
            whole[:place] + bytes([whole[place] ^ 1 << place % 8]) + whole[place + 1 :]
        )
        with pytest.raises(TrainError, match=r"resume\.pt: (damaged|version)"):
            TrainState.load(tmp_path)
    for length in (0, 5, 90, len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(TrainError, match=r"resume\.pt: damaged"):
            TrainState.load(tmp_path)
    path.unlink()
    path.mkdir()
    with pytest.raises(TrainError, match=r"resume\.pt: Is a directory"):
        TrainState.load(tmp_path)
