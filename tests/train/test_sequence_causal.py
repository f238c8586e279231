"""The causal model's loss, place by place, against brute force."""

import dataclasses

import pytest
import torch
from causal_cases import sid_log_prob
from sequence_cases import NUM_ITEMS, item_sids, recipe, straight_walk, write_data

from grace.datasets import load
from grace.errors import ConfigError
from grace.train.sequence.causal import cross_entropy
from grace.train.sequence.models import make_model
from grace.train.sequence.windows import span_windows


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return load(write_data(tmp_path_factory.mktemp("data"), walk=straight_walk))


def made(data, dense_loss, exclude):
    torch.manual_seed(0)
    settings = recipe("causal", exclude_history=exclude)
    score = dense_loss if dense_loss in (0.0, 1.0) else 0.5
    sizes = settings.model | {"dense_loss": dense_loss, "dense_score": score}
    settings = dataclasses.replace(settings, model=sizes)
    model = make_model("causal", settings, data, item_sids(), "cpu").eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.2 * torch.randn_like(parameter)
    return model


@pytest.mark.parametrize("exclude", [False, True])
@pytest.mark.parametrize("dense_loss", [0.0, 0.3, 1.0])
def test_the_loss_is_that_of_every_place_alone(dense_loss, exclude, data):
    wrapped = made(data, dense_loss, exclude)
    model = wrapped.model
    windows = span_windows(data, 5)
    batch = windows.to("cpu").batch(torch.tensor([0, -1, 7, 30]), 5)
    with torch.no_grad():
        found, count = wrapped.loss(batch, [(2, 5), (2, 5)], 0.0)
        expected, number, vectors = 0.0, 0, model.item_vectors()
        for row, length in zip(batch.items.tolist(), batch.lengths.tolist(), strict=True):
            for place in range(length):
                history, target = row[: place + 1], row[place + 1]
                hidden = model.encode([torch.tensor([history])], vectors)[-1]
                logits = vectors @ hidden
                sid = item_sids()[target].tolist()
                expected -= (1 - dense_loss) * sid_log_prob(model, hidden, sid, vectors)
                expected -= dense_loss * logits.log_softmax(0)[target]
                number += 1
    assert count == number
    torch.testing.assert_close(found, torch.as_tensor(expected), rtol=1e-5, atol=1e-4)


def test_a_later_item_changes_no_earlier_loss(data):
    wrapped = made(data, 0.5, True)
    batch = span_windows(data, 5).to("cpu").batch(torch.tensor([30]), 5)
    length = int(batch.lengths[0])
    assert length >= 3
    losses = []
    for newest in (batch.items[0, length], 11, 12):
        items = batch.items.clone()
        items[0, length] = newest
        short = batch._replace(items=items, lengths=batch.lengths)
        first = short._replace(items=torch.where(torch.arange(6) < length, items, -1))
        with torch.no_grad():
            losses.append([wrapped.loss(each, [(1, 5)], 0.0)[0] for each in (short, first)])
    whole, earlier = zip(*losses, strict=True)
    assert len({float(loss) for loss in earlier}) == 1
    assert len({round(float(loss), 4) for loss in whole}) == 3


def test_smoothing_spreads_over_what_is_possible():
    torch.manual_seed(0)
    logits = torch.randn(4, 9)
    logits[1, 3:6] = -torch.inf
    targets = torch.tensor([0, 7, 8, 2])
    log_probs = logits.log_softmax(1)
    for smoothing in (0.0, 0.2):
        found = cross_entropy(logits, targets, smoothing)
        for row in range(4):
            possible = logits[row] > -torch.inf
            spread = log_probs[row, possible].mean()
            wanted = -(1 - smoothing) * log_probs[row, targets[row]] - smoothing * spread
            torch.testing.assert_close(found[row], wanted)


def test_sizes_that_follow_are_refused(data):
    settings = dataclasses.replace(recipe("causal"), model={"max_items": 3})
    with pytest.raises(ConfigError, match="max_items follows from the SIDs or"):
        make_model("causal", settings, data, item_sids(), "cpu")


@pytest.mark.parametrize("dense_loss", [0.0, 0.5, 1.0])
def test_a_wide_search_ranks_all_items_by_their_score(dense_loss, data):
    wrapped = made(data, dense_loss, False)
    batch = span_windows(data, 5).to("cpu").batch(torch.tensor([30]), 5)
    items = torch.where(torch.arange(6) < batch.lengths[0], batch.items, -1)
    ranked = wrapped.ranker(NUM_ITEMS)(batch._replace(items=items), NUM_ITEMS)[0].tolist()
    assert sorted(ranked) == list(range(NUM_ITEMS))
