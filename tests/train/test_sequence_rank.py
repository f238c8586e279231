"""Rankings: the beam search against all SIDs and against retrieval's, metrics by hand."""

import math

import numpy as np
import pytest
import torch
from sequence_cases import item_sids, recipe, write_data

from grace.datasets import load
from grace.decode import BeamPlan, beam_search
from grace.decode.generator import Prefill
from grace.index.trie import build_trie
from grace.train.sequence.models import make_model
from grace.train.sequence.rank import rank_windows, without
from grace.train.sequence.sasrec import first_by_score
from grace.train.sequence.search import search_sids
from grace.train.sequence.validation import measure
from grace.train.sequence.windows import cut_windows, split_windows


class Table:
    """A generator whose logits follow from the prefix alone."""

    def __init__(self, requests, codes, levels, seed, rounded=False):
        generator = torch.Generator().manual_seed(seed)
        shape = (requests, codes ** (levels - 1) * 2, levels, codes)
        self.logits = torch.randn(shape, generator=generator)
        if rounded:  # many ties
            self.logits = self.logits.round()
        self.codes, self.prefix = codes, None

    def step(self, parents, tokens, t):
        rows = torch.arange(len(self.logits))[:, None]
        if t == 0:
            self.prefix = torch.zeros(len(self.logits), 1, dtype=torch.int64)
        else:
            self.prefix = self.prefix.gather(1, parents) * self.codes + tokens
        logits = self.logits[rows, self.prefix, t]
        return logits, logits.double().logsumexp(2)

    def score(self, request, sid):
        total, prefix = 0.0, 0
        for t, code in enumerate(sid):
            logits = self.logits[request, prefix, t]
            total += float(logits[code].double() - logits.double().logsumexp(0))
            prefix = prefix * self.codes + code
        return total


@pytest.mark.parametrize("rounded", [False, True])
def test_a_wide_search_ranks_all_sids_by_score_then_sid(rounded):
    sids = np.unique(item_sids(1, codes=4), axis=0)
    trie, _ = build_trie(sids)
    table = Table(3, 4, 3, seed=0, rounded=rounded)
    found = search_sids(table.step, trie, 3, width=100)
    assert found.shape == (3, len(sids))
    for request in range(3):
        scores = [table.score(request, sid) for sid in sids.tolist()]
        expected = sorted(range(len(sids)), key=lambda i: (-scores[i], i))
        assert found[request].tolist() == expected


@pytest.mark.parametrize("width", [1, 5, 32])
def test_the_search_finds_what_retrieval_finds(width):
    sids = np.unique(np.random.default_rng(2).integers(0, 7, (200, 3)).astype(np.int32), axis=0)
    trie, _ = build_trie(sids)
    mine = search_sids(Table(4, 7, 3, 5).step, trie, 4, width)
    other = Table(4, 7, 3, 5)

    class Core:
        def step(self, state, parents, tokens, t):
            return other.step(parents, tokens, t)

    sizes = trie.level_sizes
    widths = (1, *(min(width, size) for size in sizes[1:-1]))
    plan = BeamPlan(widths, min(width, sizes[-1]))
    beams = beam_search(Core(), Prefill(None, [0] * 4), trie, None, plan, 4)
    assert torch.equal(mine, beams.nodes.long() - trie.first_leaf)


@pytest.mark.parametrize("kind", ["tiger", "grace", "causal", "sasrec"])
def test_a_users_ranking_depends_on_neither_padding_nor_neighbours(kind, tmp_path):
    data = load(write_data(tmp_path))
    torch.manual_seed(0)
    sids = None if kind == "sasrec" else item_sids()
    model = make_model(kind, recipe(kind), data, sids, "cpu").eval()
    windows = split_windows(data.valid(), 5)
    many = rank_windows(model, windows, None, 40, 50, 512, "cpu")
    few = rank_windows(model, windows, None, 40, 50, 7, "cpu")
    assert (many == few).float().mean() > 0.99  # rounding may swap near ties
    assert many[:, :40].sort(1).values.unique(dim=0).tolist() == [list(range(40))]  # all, once


def test_a_generator_ranks_by_its_own_loss(tmp_path):
    data = load(write_data(tmp_path))
    torch.manual_seed(0)
    model = make_model("tiger", recipe("tiger"), data, item_sids(), "cpu").eval()
    batch = cut_windows(data, 5).to("cpu").batch(torch.arange(1), 1)
    items = batch.items.repeat(40, 1)
    items[:, 1] = torch.arange(40)
    repeated = batch._replace(items=items, lengths=batch.lengths.repeat(40),
                              users=batch.users.repeat(40))  # fmt: skip
    losses = [
        model.loss(repeated.part(slice(i, i + 1), 1), [(1, 1)], 0.0)[0].item() for i in range(40)
    ]
    ranked = model.ranker(40)(batch, 40)[0].tolist()
    assert np.all(np.diff([losses[item] for item in ranked]) > -1e-4)


def test_items_taken_out_leave_no_holes():
    ranked = torch.tensor([[4, 2, 9, 7], [1, 3, -1, -1]])
    past = torch.tensor([[2, 7, 5], [-1, -1, -1]])
    assert without(ranked, past).tolist() == [[4, 9, -1, -1], [1, 3, -1, -1]]


def test_scores_that_tie_rank_by_item():
    scores = torch.tensor([[1.0, 3.0, 1.0, 1.0, 2.0], [0.0, 0.0, 0.0, 0.0, 0.0]])
    assert first_by_score(scores, 3).tolist() == [[1, 4, 0], [0, 1, 2]]
    assert first_by_score(scores, 6)[0].tolist() == [1, 4, 0, 2, 3, -1]


def test_metrics_by_hand():
    ranked = torch.tensor([[4, 2, 9], [1, 3, -1], [0, 7, 8]])
    sums = measure(ranked, torch.tensor([2, 5, 0]))
    assert sums["recall@1"] == 1
    assert sums["recall@10"] == 2
    assert sums["ndcg@10"] == pytest.approx(1 + 1 / math.log2(3))
