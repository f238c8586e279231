import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from model_cases import FIELDS, SPEC, random_features, small_index, small_model

from grace.model import FeatureSpec

INDEX = small_index()
MODEL = small_model()


def context(rows: list[dict], model=MODEL) -> torch.Tensor:
    inputs, _ = model.features.encode(rows, INDEX)
    with torch.no_grad():
        return model.encoder(inputs)


@given(st.integers(0, 2**32 - 1))
def test_neighbours_do_not_change_a_request(seed):
    rng = np.random.default_rng(seed)
    rows = [random_features(rng) for _ in range(7)]
    together = context(rows)
    assert together.shape == (7, 5, 12)
    for row, tokens in zip(rows, together, strict=True):
        torch.testing.assert_close(context([row])[0], tokens, atol=1e-5, rtol=1e-5)


def test_what_stands_at_padding_changes_nothing():
    inputs, _ = SPEC.encode([{"clicks": [{"ad_id": 3}]}, {}], INDEX)
    scrambled = {name: tensor.clone() for name, tensor in inputs.items()}
    for field in ("clicks", "saves"):
        padding = ~inputs[f"{field}.valid"]
        scrambled[f"{field}.tokens"][padding] = 4
        scrambled[f"{field}.actions"][padding] = 2
        scrambled[f"{field}.gaps"][padding] = 7
    with torch.no_grad():
        torch.testing.assert_close(MODEL.encoder(scrambled), MODEL.encoder(inputs))


def test_more_padding_changes_nothing():
    longer_spec = FeatureSpec.from_dict(
        {
            "fields": [
                f | {"max_length": 9} if f["name"] == "clicks" else f for f in FIELDS["fields"]
            ]
        }
    )
    longer = small_model(longer_spec)
    weights = MODEL.state_dict()
    name = "encoder.embedding.sequences.0.positions"
    weights[name] = torch.cat([torch.randn(3, 12), weights[name]])  # counted from the newest event
    longer.load_state_dict(weights)
    rows = [{"clicks": [{"ad_id": i, "at": i} for i in range(n)]} for n in range(7)]
    torch.testing.assert_close(context(rows, longer), context(rows), atol=1e-5, rtol=1e-5)


def test_every_input_reaches_the_context():
    base = {"gender": "f", "age": 30, "genres": ["a"], "saves": [{"ad_id": 5}],
            "clicks": [{"ad_id": 1, "action": "view", "at": 0}, {"ad_id": 2, "at": 9}]}  # fmt: skip
    changes = [
        {"gender": "m"}, {"gender": None}, {"gender": "?"}, {"age": 31}, {"age": None},
        {"genres": ["a", "b"]}, {"genres": []}, {"saves": [{"ad_id": 6}]}, {"saves": []},
        {"clicks": [{"ad_id": 7, "action": "view", "at": 0}, {"ad_id": 2, "at": 9}]},
        {"clicks": [{"ad_id": 1, "action": "buy", "at": 0}, {"ad_id": 2, "at": 9}]},
        {"clicks": [{"ad_id": 1, "action": "view", "at": 0}, {"ad_id": 2, "at": 99}]},
    ]  # fmt: skip
    unchanged, *changed = context([base, *(base | change for change in changes)])
    for change, tokens in zip(changes, changed, strict=True):
        assert (tokens - unchanged).abs().max() > 1e-4, change


def test_nothing_known_and_absurd_numbers_give_finite_tokens_and_gradients():
    rows = [{}, {"age": 1e99}, {"age": -1e99}, {"age": 3, "clicks": [{"ad_id": 1, "at": 1e11}]}]
    inputs, _ = SPEC.encode(rows, INDEX)
    model = small_model()
    tokens = model.encoder(inputs)
    assert tokens.isfinite().all()
    tokens.square().sum().backward()
    gradients = [p.grad for p in model.encoder.parameters() if p.grad is not None]
    assert gradients
    assert all(gradient.isfinite().all() for gradient in gradients)


def test_a_model_may_have_no_sequence_or_nothing_else():
    for fields in (FIELDS["fields"][:3], FIELDS["fields"][3:], FIELDS["fields"][4:]):
        model = small_model(FeatureSpec.from_dict({"fields": fields}), num_recent_tokens=5)
        assert context([{}, {}], model).isfinite().all()
