"""Lists and metrics against values worked out by hand, and against slow obvious code."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grace.evaluate.ranking.breadth import breadth, gini
from grace.evaluate.ranking.lists import check_lists, in_history, places, repeated, without
from grace.evaluate.ranking.metrics import per_user


@st.composite
def cases(draw):
    """Lists with duplicates and gaps, and a target per user."""
    users, width, items = draw(st.integers(1, 6)), draw(st.integers(1, 12)), draw(st.integers(1, 9))
    entry = st.integers(-1, items - 1)
    ranked = draw(st.lists(st.lists(entry, min_size=width, max_size=width), min_size=users,
                           max_size=users))  # fmt: skip
    targets = draw(st.lists(st.integers(0, items - 1), min_size=users, max_size=users))
    return np.array(ranked, np.int64), np.array(targets), items


def slow_metrics(ranked: list[int], target: int, k: int) -> tuple[float, float, float]:
    """Recall, NDCG and reciprocal rank of one list, item by item."""
    seen: list[int] = []
    for item in ranked:
        if item >= 0 and item not in seen:
            seen.append(item)
    first = seen[:k]
    gains = [1.0 if item == target else 0.0 for item in first]
    discounted = sum(gain / math.log2(i + 2) for i, gain in enumerate(gains))
    reciprocal = next((1 / (i + 1) for i, item in enumerate(first) if item == target), 0.0)
    return sum(gains), discounted, reciprocal


@given(cases(), st.integers(1, 12))
def test_metrics_are_those_of_slow_code_and_never_above_one(case, k):
    ranked, targets, _ = case
    clean = without(ranked, repeated(ranked))
    values = per_user(places(clean, targets), (k,))
    for user, target in enumerate(targets):
        expected = slow_metrics(ranked[user].tolist(), target, k)
        measured = [values[f"{name}@{k}"][user] for name in ("recall", "ndcg", "mrr")]
        assert measured == pytest.approx(expected)
        assert max(measured) <= 1


@given(cases())
def test_cleaned_lists_hold_each_item_once_in_order(case):
    ranked, _, _ = case
    clean = without(ranked, repeated(ranked))
    for before, after in zip(ranked.tolist(), clean.tolist(), strict=True):
        once = list(dict.fromkeys(item for item in before if item >= 0))
        assert after == once + [-1] * (len(before) - len(once))


def test_metrics_by_hand():
    values = per_user(np.array([1, 2, 3, 20, 21, 0]), (1, 10, 20))
    assert values["recall@1"].tolist() == [1, 0, 0, 0, 0, 0]
    assert values["recall@10"].tolist() == [1, 1, 1, 0, 0, 0]
    assert values["recall@20"].tolist() == [1, 1, 1, 1, 0, 0]
    assert values["ndcg@10"] == pytest.approx([1, 0.6309298, 0.5, 0, 0, 0])
    assert values["ndcg@20"][3] == pytest.approx(0.2276702)  # 1 / log2(21)
    assert values["mrr@20"] == pytest.approx([1, 1 / 2, 1 / 3, 1 / 20, 0, 0])


def test_a_target_listed_many_times_counts_once():
    """A list that only repeats the target scores 1, not more; what follows moves up."""
    ranked = np.array([[4, 4, 4, 4], [1, 1, 4, 2]])
    clean = without(ranked, repeated(ranked))
    assert clean.tolist() == [[4, -1, -1, -1], [1, 4, 2, -1]]
    values = per_user(places(clean, np.array([4, 4])), (4,))
    assert values["recall@4"].tolist() == [1, 1]
    assert values["ndcg@4"] == pytest.approx([1, 1 / math.log2(3)])


def test_items_of_the_history_are_found_for_their_user_alone():
    ranked = np.array([[0, 1, 2], [0, 1, -1], [2, 2, 0]])
    offsets, items = np.array([0, 2, 3, 3]), np.array([2, 0, 1])
    assert in_history(ranked, offsets, items).tolist() == [
        [True, False, True],
        [False, True, False],
        [False, False, False],
    ]


@pytest.mark.parametrize(
    ("ranked", "message"),
    [
        (np.zeros((2, 3), np.int32), "expected int64"),
        (np.zeros((3, 3), np.int64), r"expected int64 \[2, K\]"),
        (np.full((2, 3), 5), "expected items from 0 to 4"),
        (np.full((2, 3), -2), "got -2"),
    ],
)
def test_wrong_lists_are_refused(ranked, message):
    with pytest.raises(ValueError, match=message):
        check_lists(ranked, 2, 5)


def test_gini_by_hand_and_by_pairs():
    assert gini(np.array([3, 3, 3, 3])) == 0
    assert gini(np.array([0, 0, 0, 8])) == pytest.approx(3 / 4)  # (n - 1) / n
    assert gini(np.zeros(4)) == 0
    counts = np.random.default_rng(0).integers(0, 9, 30)
    pairs = np.abs(counts[:, None] - counts[None, :]).mean()
    assert gini(counts) == pytest.approx(pairs / (2 * counts.mean()))


def test_breadth_by_hand():
    counts = np.array([1, 5, 0, 5])  # ranks: item 1 first, then 3 (equal), 0, 2
    ranked = np.array([[1, 3], [1, -1]])
    found = breadth(ranked, np.array([2, 1]), counts)
    assert found["coverage"] == 0.5
    assert found["log_popularity_rank"] == pytest.approx((2 * math.log(1) + math.log(2)) / 3)
    assert found["target_log_popularity_rank"] == pytest.approx((math.log(4) + math.log(1)) / 2)
    assert breadth(np.full((2, 2), -1), np.array([2, 1]), counts)["coverage"] == 0
