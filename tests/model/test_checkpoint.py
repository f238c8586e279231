import json

import pytest
import torch
from model_cases import SPEC, small_index, small_model

import grace.files
from grace.errors import ModelError
from grace.model import EncoderDecoder, FeatureSpec, load_model, save_model
from grace.model.checkpoint import _digest

INPUTS = SPEC.encode([{"age": 30, "clicks": [{"ad_id": 1}]}], small_index())[0]


def logits(model) -> torch.Tensor:
    return model.decode(model.prefill(INPUTS), None, None, 0)[0]


@pytest.fixture
def saved(tmp_path):
    save_model(small_model(seed=1), tmp_path / "m")
    return tmp_path / "m"


def edit_config(directory, **changes):
    """Change the configuration as a program would that keeps its hash true."""
    path = directory / "config.json"
    content = json.loads(path.read_text()) | changes
    content["sha256"] = _digest({key: content[key] for key in content if key != "sha256"})
    path.write_text(json.dumps(content))


def test_a_loaded_model_is_the_saved_one(saved):
    model = load_model(saved)
    assert torch.equal(logits(model), logits(small_model(seed=1)))
    assert model.features == SPEC
    assert model.config == small_model().config
    assert not model.training


def test_saving_again_replaces_the_model_and_leaves_other_files(saved):
    (saved / "metrics.jsonl").write_text("kept")
    save_model(small_model(seed=2), saved)
    assert torch.equal(logits(load_model(saved)), logits(small_model(seed=2)))
    assert len(list(saved.iterdir())) == 3


@pytest.mark.parametrize("survivors", range(2))
def test_a_save_that_stops_anywhere_leaves_the_old_model(saved, monkeypatch, survivors):
    replace, calls = grace.files.os.replace, []

    def stop(*paths):
        if len(calls) == survivors:
            raise KeyboardInterrupt
        calls.append(paths)
        replace(*paths)

    monkeypatch.setattr(grace.files.os, "replace", stop)
    with pytest.raises(KeyboardInterrupt):
        save_model(small_model(seed=2), saved)
    monkeypatch.undo()
    assert torch.equal(logits(load_model(saved)), logits(small_model(seed=1)))
    save_model(small_model(seed=2), saved)
    assert len(list(saved.iterdir())) == 2


def weights_of(directory):
    (path,) = directory.glob("*.safetensors")
    return path


def truncate(directory):
    path = weights_of(directory)
    path.write_bytes(path.read_bytes()[:-9])


def flip_a_bit(directory):
    content = bytearray(weights_of(directory).read_bytes())
    content[len(content) // 2] ^= 4
    weights_of(directory).write_bytes(content)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (truncate, "damaged: its SHA-256 is not that in config.json; copy the whole"),
        (flip_a_bit, "damaged: its SHA-256 is not that in config.json"),
        (lambda d: weights_of(d).unlink(), "safetensors: not found; copy the whole directory"),
        (lambda d: (d / "config.json").unlink(), "config.json: not found; a model is a directory"),
        (lambda d: (d / "config.json").write_text('{"format": "gr'), "config.json: damaged"),
        (lambda d: (d / "config.json").write_text("[]"), "config.json: not a model of Grace"),
        (lambda d: edit_config(d, format="llama"), "config.json: not a model of Grace"),
        (lambda d: edit_config(d, format_version=2), "format version 2, this program reads 1"),
        (lambda d: edit_config(d, weights={}), "config.json: damaged"),
        (lambda d: edit_config(d, weights={"file": 3, "sha256": ""}), "config.json: damaged"),
        (lambda d: edit_config(d, model={"num_levels": 3}), "'vocab_size' is missing"),
        (lambda d: edit_config(d, model={"num_levels": 3, "vocab_size": 5}), "does not fit"),
        (lambda d: edit_config(d, features={"fields": 3}), "config.json: damaged: features"),
    ],
)
def test_a_damaged_foreign_or_newer_model_is_refused_by_name(saved, damage, message):
    damage(saved)
    with pytest.raises(ModelError) as caught:
        load_model(saved)
    assert message in str(caught.value)
    assert str(saved) in str(caught.value)


def test_a_folder_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(ModelError, match="grace train --out"):
        load_model(tmp_path / "none")


def test_a_configuration_changed_by_hand_is_refused(saved):
    path = saved / "config.json"
    path.write_text(path.read_text().replace('"dropout": 0.0', '"dropout": 0.1'))
    assert '"dropout": 0.1' in path.read_text()
    with pytest.raises(ModelError, match=r"config\.json: differs from what was written"):
        load_model(saved)


def test_a_vocabulary_of_odd_text_is_kept(tmp_path):
    spec = FeatureSpec.from_dict(
        {"fields": [{"name": "c", "kind": "categorical", "values": ["\x00", "\u2028", "é"]}]}
    )
    save_model(EncoderDecoder(small_model().config, spec), tmp_path)
    assert load_model(tmp_path).features == spec
