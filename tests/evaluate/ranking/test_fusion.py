"""Fusion of lists against the formula item by item."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grace.evaluate.ranking.fusion import Fusion, choose_fusion, fuse
from grace.evaluate.ranking.lists import places


@st.composite
def lists_of_users(draw):
    users, items, models = draw(st.integers(1, 4)), draw(st.integers(1, 9)), draw(st.integers(1, 3))
    rng = np.random.default_rng(draw(st.integers(0, 10**6)))
    made = []
    for _ in range(models):
        width = int(rng.integers(1, items + 1))
        ranked = np.argsort(rng.random((users, items)), axis=1)[:, :width]
        filled = rng.integers(0, width + 1, (users, 1))
        made.append(np.where(np.arange(width) < filled, ranked, -1))
    return made, items


def slow_fusion(lists: list[list[int]], fusion: Fusion) -> list[int]:
    scores: dict[int, float] = {}
    for ranked, weight in zip(lists, fusion.weights, strict=True):
        for place, item in enumerate(ranked, 1):
            if item >= 0 and weight > 0:
                scores[item] = scores.get(item, 0.0) + weight / (fusion.constant + place)
    best = sorted(scores, key=lambda item: (-scores[item], item))
    width = max(map(len, lists))
    return (best + [-1] * width)[:width]


@given(lists_of_users(), st.sampled_from([0, 5, 60]), st.data())
def test_fused_lists_are_those_of_the_formula(case, constant, data):
    made, _ = case
    weights = data.draw(st.permutations([0.5, 0.25, 0.0]).map(lambda w: tuple(w[: len(made)])))
    fusion = Fusion(weights, constant)
    fused = fuse(made, fusion)
    for user, ranked in enumerate(fused):
        assert ranked.tolist() == slow_fusion([m[user].tolist() for m in made], fusion)


def test_weight_on_one_list_gives_that_list():
    lists = [np.array([[3, 1, 2]]), np.array([[2, 3, -1]])]
    assert fuse(lists, Fusion((1.0, 0.0), 60)).tolist() == [[3, 1, 2]]
    assert fuse(lists, Fusion((0.0, 1.0), 60)).tolist() == [[2, 3, -1]]


def test_weights_go_where_the_targets_are():
    rng = np.random.default_rng(0)
    targets = rng.integers(0, 50, 200)
    random = np.argsort(rng.random((200, 50)), axis=1)[:, :20]
    good = random.copy()
    good[:, 0] = targets
    good[:, 1:][good[:, 1:] == targets[:, None]] = -1
    chosen = choose_fusion([[random, good]], targets)
    assert chosen.weights[1] > 0.5
    assert (places(fuse([random, good], chosen), targets) == 1).mean() > 0.95


def test_two_lists_that_know_different_users_are_better_together():
    rng = np.random.default_rng(1)
    targets = rng.integers(0, 400, 300)
    lists = []
    for half in (slice(0, 150), slice(150, 300)):
        ranked = np.argsort(rng.random((300, 400)), axis=1)[:, :20]
        ranked[half, 4] = targets[half]
        lists.append(np.where(np.arange(20) == 4, ranked, np.where(
            ranked == targets[:, None], -1, ranked)))  # fmt: skip
    chosen = choose_fusion([lists], targets)
    assert min(chosen.weights) > 0
    found = (places(fuse(lists, chosen), targets) > 0).mean()
    assert found > 0.9 > 0.6 > max((places(ranked, targets) > 0).mean() for ranked in lists)


def test_a_weight_for_each_list_is_needed():
    with pytest.raises(ValueError, match="weights: expected 1, got 2"):
        fuse([np.zeros((1, 1), np.int64)], Fusion((0.5, 0.5), 0))
