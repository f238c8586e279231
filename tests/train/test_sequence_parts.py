"""Windows, draws, losses, SIDs and optimisers of sequence training, each against brute force."""

import itertools
import math

import numpy as np
import pytest
import torch
from sequence_cases import NUM_ITEMS, item_id, item_sids, recipe, write_data, write_sids
from torch import nn

from benchmarks.quality import VARIANTS
from grace.datasets import load
from grace.errors import CatalogError, ConfigError, SidError
from grace.train.sequence.config import Recipe, SequenceConfig
from grace.train.sequence.draws import Draws, choose_rooms
from grace.train.sequence.loss import code_loss
from grace.train.sequence.models import make_model, training_windows
from grace.train.sequence.processes import joined
from grace.train.sequence.sids import SidTable, read_sids, refuse_degenerate
from grace.train.sequence.step import Step
from grace.train.sequence.weights import Weights
from grace.train.sequence.windows import cut_windows, span_windows, thinned


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return load(write_data(tmp_path_factory.mktemp("data")))


def histories(data):
    return [data.items[a:b].tolist() for a, b in itertools.pairwise(data.offsets)]


def cut(windows, room=None):
    """Return (history, next item) of every window, as the device cuts them."""
    room = room or int(windows.lengths.max())
    batch = windows.to("cpu").batch(torch.arange(len(windows)), room)
    rows = zip(batch.items.tolist(), batch.lengths.tolist(), strict=True)
    return [(row[:length], row[length], row[length + 1 :]) for row, length in rows]


def test_cuts_are_every_prefix_and_what_came_next(data):
    found = cut(cut_windows(data, 3), room=5)
    expected = [(h[max(0, end - 3) : end], h[end])
                for h in histories(data) for end in range(1, len(h))]  # fmt: skip
    assert [row[:2] for row in found] == expected
    assert all(set(rest) <= {-1} for _, _, rest in found)


def test_spans_make_every_item_but_the_first_a_target_once(data):
    windows = span_windows(data, 3)
    assert windows.lengths.min() >= 1
    assert windows.lengths.max() <= 3
    targets = [t for f, n in zip(windows.first, windows.lengths, strict=True)
               for t in range(f + 1, f + n + 1)]  # fmt: skip
    expected = [t for a, b in itertools.pairwise(data.offsets) for t in range(a + 1, b)]
    assert sorted(targets) == expected


def test_empty_rows_hold_nothing(data):
    batch = cut_windows(data, 3).to("cpu").batch(torch.tensor([4, -1]), 3)
    assert batch.lengths[1] == 0
    assert (batch.items[1] == -1).all()


def test_thinning_keeps_order_the_newest_and_what_followed(data):
    torch.manual_seed(0)
    batch = cut_windows(data, 5).to("cpu").batch(torch.arange(200), 5)
    thin = thinned(batch, 0.5)
    removed = 0
    for before, length, after, left in zip(batch.items.tolist(), batch.lengths.tolist(),
                                           thin.items.tolist(), thin.lengths.tolist(),
                                           strict=True):  # fmt: skip
        history, kept = before[:length], iter(after[:left])
        assert after[left - 1 : left + 1] == before[length - 1 : length + 1]
        assert set(after[left + 1 :]) <= {-1}
        wanted = next(kept, None)
        for item in history:
            wanted = next(kept, None) if item == wanted else wanted
        assert wanted is None  # a subsequence
        removed += length - left
    assert 0.3 < removed / (batch.lengths.sum() - len(batch.lengths)) < 0.7


@pytest.mark.parametrize("buckets", [1, 2, 3, 9])
def test_rooms_waste_least(buckets):
    lengths = np.array([1] * 50 + [2] * 3 + [5] * 20 + [6] * 20 + [9])
    rooms = choose_rooms(lengths, buckets)

    def padded(rooms):
        return sum(min(r for r in rooms if r >= n) for n in lengths)

    choices = (c for n in range(1, buckets + 1)
               for c in itertools.combinations([1, 2, 5, 6, 9], min(n, 5)) if 9 in c)  # fmt: skip
    assert padded(rooms) == min(map(padded, choices))
    assert list(rooms) == sorted(set(rooms))


@pytest.mark.parametrize("processes", [1, 3])
def test_an_epoch_draws_every_example_once_in_static_shapes(processes):
    lengths = np.random.default_rng(0).integers(1, 8, 101)
    parts = [Draws(lengths, 3, 10, 4, 7, p, processes) for p in range(processes)]
    assert parts[0].steps_per_epoch == math.ceil(101 / (10 * processes))
    epochs = []
    for number in (0, 1):
        drawn = [part.epoch(number) for part in parts]
        rows = torch.cat([bucket.flatten() for part in drawn for bucket in part])
        assert sorted(rows[rows >= 0].tolist()) == list(range(101))
        for part, tensors in zip(parts, drawn, strict=True):
            assert part.pieces == parts[0].pieces
            for bucket, first, last, room in part.pieces:
                piece = tensors[bucket][:, first:last]
                assert piece.shape == (part.steps_per_epoch, last - first)
                assert last - first <= 4
                assert lengths[piece[piece >= 0]].max(initial=0) <= room
        epochs.append(rows)
        sizes = sum((tensors[b] >= 0).sum(1) for tensors in drawn for b in range(len(tensors)))
        assert sizes.max() - sizes.min() <= 3  # one a bucket
    assert not torch.equal(*epochs)
    again = torch.cat([b.flatten() for part in parts for b in part.epoch(0)])
    assert torch.equal(again, epochs[0])


@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize("batch_size", [1, 2, 3])
def test_no_step_is_without_examples(batch_size, processes):
    for lengths in ([1, 2, 3], [3] * 50 + [1, 2], [1, 2, 3, 4, 5] * 7):
        parts = [Draws(np.array(lengths), 5, batch_size, 4096, 0, p, processes)
                 for p in range(processes)]  # fmt: skip
        taken = sum((rows >= 0).sum(1) for part in parts for rows in part.epoch(0))
        assert len(taken) == math.ceil(len(lengths) / (batch_size * processes))
        assert taken.min() >= 1


def test_smoothing_stays_within_a_level_and_empty_rows_do_not_count():
    torch.manual_seed(0)
    logits, tokens = torch.randn(3, 2, 9), torch.tensor([[2, 6], [4, 8], [0, 0]])
    blocks = [slice(2, 5), slice(5, 9)]
    loss, count = code_loss(logits, tokens, torch.tensor([True, True, False]), blocks, 0.1)
    log_probs = logits.log_softmax(2)
    expected = 0.0
    for row in range(2):
        for t, block in enumerate(blocks):
            target = torch.zeros(9)
            target[block] = 0.1 / (block.stop - block.start)
            target[tokens[row, t]] += 0.9
            expected -= (target * log_probs[row, t]).sum()
    torch.testing.assert_close(loss, expected)
    assert count == 4


@pytest.mark.parametrize("kind", ["tiger", "grace", "causal", "sasrec"])
def test_loss_does_not_depend_on_the_split_into_micro_batches(kind, data):
    torch.manual_seed(0)
    setting = recipe(kind)
    model = make_model(kind, setting, data, None if kind == "sasrec" else item_sids(), "cpu")
    model.eval()
    windows = training_windows(kind, data, 5)
    on_device = windows.to("cpu")
    rows = torch.arange(17)

    def gradients(pieces, room):
        model.zero_grad()
        sums = []
        for piece in pieces:
            loss, count = model.loss(on_device.batch(piece, room), [(len(piece), room)], 0.1)
            loss.backward()
            sums.append(torch.stack([loss.detach(), count.float()]))
        grads = [p.grad for p in model.parameters() if p.grad is not None]
        return sum(sums), torch.cat([g.flatten() for g in grads])

    whole, expected = gradients([rows], 5)
    order = rows[torch.argsort(on_device.lengths[rows])]
    empty = torch.full((3,), -1)
    for pieces in (order.split(4), [rows[:1], torch.cat([rows[1:], empty])]):
        total, found = gradients(pieces, 5)
        torch.testing.assert_close(total, whole)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    short = rows[on_device.lengths[rows] <= 2]
    torch.testing.assert_close(gradients([short], 2)[0], gradients([short], 5)[0])


class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.used, self.idle = nn.Linear(3, 4, bias=False), nn.Linear(3, 4, bias=False)
        self.table = nn.Embedding(5, 3)


@pytest.mark.parametrize("optimiser", ["adamw", "muon"])
def test_weights_without_a_gradient_do_not_move_or_decay(optimiser):
    torch.manual_seed(0)
    model = Two()
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    config = SequenceConfig(optimiser=optimiser, weight_decay=0.5, learning_rate=0.1,
                            muon_learning_rate=0.1)  # fmt: skip
    weights = Weights(model, config)
    weights.prime()
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, before[name])
    model.used.weight.grad.copy_(torch.randn(4, 3))
    model.table.weight.grad[2] = 1.0
    weights.step(torch.tensor(0.5), torch.tensor(1.0))
    after = dict(model.named_parameters())
    assert torch.equal(after["idle.weight"], before["idle.weight"])
    assert not torch.equal(after["used.weight"], before["used.weight"])
    assert (after["table.weight"] != before["table.weight"]).any(1).tolist() == [0, 0, 1, 0, 0]
    assert torch.equal(weights.average, weights.values)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gradients_of_cast_weights_add_up_in_the_weights(dtype):
    torch.manual_seed(0)
    model = Two()
    weights = Weights(model, SequenceConfig())
    for _ in range(2):
        copies = weights.cast(dtype)
        for name, parameter in model.named_parameters():
            assert torch.equal(copies[name], parameter.to(dtype))
        (copies["used.weight"].T * copies["table.weight"][:3, :1]).float().sum().backward()
    expected = model.table.weight[:3, :1].T.to(dtype).float().expand(4, 3)
    torch.testing.assert_close(model.used.weight.grad, 2 * expected)
    assert not model.idle.weight.grad.any()
    assert model.table.weight.grad[:3, 0].all()
    assert not model.table.weight.grad[:, 1:].any()


@pytest.mark.parametrize("kind", ["tiger", "grace", "causal", "sasrec"])
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("micro_batch_size", [4096, 20, 3])
def test_a_step_over_pieces_is_one_over_padded_rows(kind, precision, micro_batch_size, data):
    """However the rows are grouped into passes, loss and gradients stay the same."""
    settings = recipe(kind, precision=precision, micro_batch_size=micro_batch_size,
                      label_smoothing=0.1)  # fmt: skip
    torch.manual_seed(0)
    sids = None if kind == "sasrec" else item_sids()
    model = make_model(kind, settings, data, sids, "cpu").eval()
    windows = training_windows(kind, data, 5)
    draws = Draws(windows.lengths, 3, 32, micro_batch_size, 0)
    weights = Weights(model, settings.train)
    weights.prime()
    drawn = draws.epoch(0)
    rows = [drawn[b][0, first:last] for b, first, last, _ in draws.pieces]
    whole = windows.to("cpu").batch(torch.cat(rows), 5)
    loss, count = model.loss(whole, [(len(whole.lengths), 5)], 0.1)
    loss.backward()
    expected = weights.gradients / count
    rooms = [piece[3] for piece in draws.pieces]
    with joined("cpu") as processes:
        step = Step(model, weights, windows.to("cpu"), rooms, settings.train, processes)
        found, norm = step(rows, torch.tensor([0.0, 1.0]))
    scale = (1 / norm).clamp_max(1)  # clipped to a norm of 1
    bounds = {"rtol": 1e-4, "atol": 1e-6} if precision == "float32" else {"rtol": 0.1, "atol": 2e-2}
    torch.testing.assert_close(found, loss.detach() / count, **bounds)
    torch.testing.assert_close(weights.gradients / scale, expected, **bounds)


@pytest.mark.parametrize("optimiser", ["adamw", "muon"])
def test_the_step_is_that_of_torchs_optimisers(optimiser):
    torch.manual_seed(0)
    mine, theirs = Two(), Two()
    theirs.load_state_dict(mine.state_dict())
    config = SequenceConfig(optimiser=optimiser, learning_rate=0.1, muon_learning_rate=0.05,
                            weight_decay=0.3, max_gradient_norm=2.0, average_decay=0.5)  # fmt: skip
    weights = Weights(mine, config)
    weights.prime()
    hidden = [theirs.used.weight, theirs.idle.weight]
    if optimiser == "muon":
        first = torch.optim.Muon(hidden, weight_decay=0.3, adjust_lr_fn="match_rms_adamw")
        rate, tolerance = 0.05, 1e-3  # batches may round to bfloat16 otherwise
    else:
        first = torch.optim.AdamW(hidden, betas=(0.9, 0.98), weight_decay=0.3)
        rate, tolerance = 0.1, 1e-5
    adam = torch.optim.AdamW([theirs.table.weight], betas=(0.9, 0.98), weight_decay=0.0)
    average = weights.values.clone()
    for step in range(5):
        share = 1 - step / 10
        first.param_groups[0]["lr"], adam.param_groups[0]["lr"] = rate * share, 0.1 * share
        for a, b in zip(mine.parameters(), theirs.parameters(), strict=True):
            b.grad = torch.randn_like(b)
            a.grad.copy_(b.grad)
        norm = torch.nn.utils.clip_grad_norm_(theirs.parameters(), 2.0)
        first.step()
        adam.step()
        found = weights.step(torch.tensor(share), torch.tensor(0.25))
        torch.testing.assert_close(found, norm)
        for a, b in zip(mine.parameters(), theirs.parameters(), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=tolerance)
        average = average + 0.25 * (weights.values - average)
    torch.testing.assert_close(weights.average, average)


def test_schedules():
    cosine = SequenceConfig(steps=100, warmup_steps=10, schedule="cosine")
    assert cosine.rate_share(0) == pytest.approx(0.1)
    assert cosine.rate_share(9) == cosine.rate_share(10) == 1.0
    assert cosine.rate_share(55) == pytest.approx(0.5)
    inverse = SequenceConfig(steps=100, warmup_steps=10, schedule="inverse-sqrt")
    assert inverse.rate_share(39) == pytest.approx(0.5)
    assert SequenceConfig(schedule="constant").rate_share(5000) == 1.0
    assert SequenceConfig(average_decay=0.9).average_share(0) == pytest.approx(0.9)
    assert SequenceConfig(average_decay=0.9).average_share(10**4) == pytest.approx(0.1)
    assert SequenceConfig().average_share(3) == 1.0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[train]\nstep = 3\n", r"unknown key 'step'"),
        ("[train]\nschedule = 'linear'\n", r"schedule must be one of cosine, inverse-sqrt"),
        ("[train]\nbatch_size = 0\n", r"batch_size must be from 1 to 1000000000, got 0"),
        ("[train]\nlabel_smoothing = 1.0\n", r"label_smoothing must be at least 0 and below 1"),
        ("[other]\n", r"expected the tables \[model\] and \[train\], got 'other'"),
    ],
)
def test_wrong_recipes_are_refused_by_name(tmp_path, text, message):
    (tmp_path / "r.toml").write_text(text)
    with pytest.raises(ConfigError, match=message):
        Recipe.load(tmp_path / "r.toml")


def test_recipes_of_the_repository_can_be_read(data):
    from pathlib import Path

    folder = Path(__file__).parents[2] / "recipes"
    recipes = sorted(set(folder.glob("*.toml")) - {folder / "sids.toml"})  # of tokenizers
    kinds = {variant.recipe: variant.model for variant in VARIANTS.values()}
    assert recipes
    for path in recipes:
        kind = kinds[path.stem.split("-")[0]]
        make_model(kind, Recipe.load(path), data, item_sids(), "cpu")


def test_sids_are_read_by_item(tmp_path):
    ids = np.array([item_id(i) for i in range(NUM_ITEMS)])
    assert np.array_equal(read_sids(write_sids(tmp_path / "s.parquet"), ids), item_sids())
    with pytest.raises(CatalogError, match=r"1 items of the data have no SID, the first is 125"):
        read_sids(tmp_path / "s.parquet", np.append(ids, 125))
    with pytest.raises(CatalogError, match=r"row 1: .*5 is no item of the data"):
        read_sids(tmp_path / "s.parquet", ids[1:])


@pytest.mark.parametrize(
    ("sids", "message"),
    [
        (np.zeros((40, 3)), "all 40 items share one"),
        (np.r_[np.zeros((30, 2)), np.arange(20).reshape(10, 2)], "30 of 40 items share"),
        (np.stack([np.zeros(40), np.arange(40)], 1), "level 1 tells apart 0.0%"),
        (np.stack([np.arange(40) % 4, np.arange(40) % 4], 1), "level 2 tells apart 0.0%"),
        (
            np.stack([np.arange(100) % 4 * 33, np.arange(100) // 4 % 2], 1),
            "they tell apart 45.1% of what they could",
        ),
    ],
)
def test_degenerate_sids_are_refused(sids, message):
    with pytest.raises(SidError, match=message):
        refuse_degenerate(sids.astype(np.int32))


def test_honest_sids_are_not():
    refuse_degenerate(item_sids())
    refuse_degenerate(np.arange(40, dtype=np.int32)[:, None])  # one level, an item a code
    extra = np.c_[np.arange(40) // 2, np.arange(40) % 2, np.zeros(40)]  # the last breaks no tie
    refuse_degenerate(extra.astype(np.int32))
    refuse_degenerate(np.zeros((1, 3), np.int32))


def test_items_of_found_sids_come_in_order():
    sids = np.array([[1, 1], [0, 2], [1, 1], [0, 0], [1, 1]], np.int32)
    table = SidTable.build(sids, "cpu")  # SIDs 00: 3; 02: 1; 11: 0, 2, 4
    found = torch.tensor([[2, 0, 1], [0, -1, -1]])
    assert table.expand(found, 4).tolist() == [[0, 2, 4, 3], [3, -1, -1, -1]]
    assert table.sizes == (2, 3)
