"""Tokenizers that give themselves away."""

from __future__ import annotations

import numpy as np
import pytest

from grace.evaluate.ranking.tokenizer import (
    Transitions,
    check_tokenizer,
    last_training_transitions,
    shared_hits,
    sid_neighbours,
)

N, U = 200, 400


def pairs(seed: int) -> Transitions:
    """One item each, and another that came next."""
    rng = np.random.default_rng(seed)
    return Transitions(np.arange(U + 1), rng.integers(0, N, U), rng.integers(0, N, U))


def lists(sids: np.ndarray, users: int, width: int = 20) -> np.ndarray:
    """What a generator gives that likes SIDs in ascending order: items of a SID by item."""
    order = np.lexsort(sids.T[::-1])
    return np.tile(order[:width], (users, 1))


def check(sids: np.ndarray, asked: Transitions, ranked: np.ndarray | None = None):
    counts = np.bincount(asked.items, minlength=N)
    ranked = lists(sids, len(asked.targets)) if ranked is None else ranked
    return check_tokenizer(sids, ranked, asked, pairs(7), counts)


def test_all_items_in_one_sid_score_near_zero_and_are_called_degenerate():
    report = check(np.zeros((N, 3), np.int64), pairs(0))
    assert report.largest_sid == N
    assert report.shared_recall == pytest.approx(10 / N)
    assert report.ordered_recall < 0.1
    assert any(warning.startswith("degenerate: 200 of 200") for warning in report.warnings)


def test_an_order_within_sids_that_knows_the_answer_is_seen():
    """One SID for all, and yet the target first: only the order within the SID can say so."""
    asked = pairs(1)
    ranked = lists(np.zeros((N, 1), np.int64), U)
    ranked = np.concatenate([asked.targets[:, None], ranked], axis=1)
    report = check(np.zeros((N, 1), np.int64), asked, ranked)
    assert report.ordered_recall == 1
    assert any(warning.startswith("ties decide") for warning in report.warnings)


def test_a_fair_tokenizer_has_no_warning():
    sids = np.stack([np.arange(N) // 20, np.arange(N) % 20], axis=1)
    assert check(sids, pairs(0)).warnings == ()


def test_a_tokenizer_fitted_on_held_out_pairs_is_called_leaking():
    """Held-out pairs share a SID, training pairs do not."""
    items = np.arange(N)
    asked = Transitions(np.arange(N + 1), items, items ^ 1)
    sids = np.stack([items // 2, items % 2], axis=1)
    report = check(sids, asked)
    assert report.neighbours.value == 1
    assert any(warning.startswith("leaking") for warning in report.warnings)
    # Fitted on training pairs, the same SIDs may know them.
    counts = np.bincount(items, minlength=N)
    fitted = check_tokenizer(sids, lists(sids, N), asked, asked, counts)
    assert not any(warning.startswith("leaking") for warning in fitted.warnings)


def test_shared_places_by_hand():
    group = np.array([0, 0, 0, 1, 2, 2])
    ranked = np.array([[3, 0, 1, 2, 4], [4, 5, 3, 0, 1], [3, -1, -1, -1, -1]])
    # SID 0 takes places 2-4: of them 1 is within 2. SID 2 takes 1 and 2. SID 0 is not there.
    assert shared_hits(ranked, np.array([1, 5, 0]), group, 2) == pytest.approx([1 / 3, 1, 0])


def test_neighbours_by_hand_and_by_slow_code():
    sids = np.array([[0, 0], [0, 1], [0, 0], [1, 0], [0, 0]])
    counts = np.array([1, 9, 2, 5, 3])
    assert sid_neighbours(sids, counts, 3)[0].tolist() == [4, 2, 1]
    assert sid_neighbours(sids, counts, 6)[3].tolist() == [1, 4, 2, 0, -1, -1]
    rng = np.random.default_rng(0)
    sids, counts = rng.integers(0, 3, (40, 3)), rng.integers(0, 5, 40)
    for item, found in enumerate(sid_neighbours(sids, counts, 7)):
        shared = np.cumprod(sids == sids[item], axis=1).sum(1)
        others = sorted(
            (o for o in range(40) if o != item), key=lambda o: (-shared[o], -counts[o], o)
        )
        assert found.tolist() == others[:7]


def test_the_last_training_transition_of_each_user_with_two_items():
    found = last_training_transitions(np.array([0, 3, 4, 6]), np.array([5, 6, 7, 8, 1, 2]))
    assert found.offsets.tolist() == [0, 2, 3]
    assert found.items.tolist() == [5, 6, 1]
    assert found.targets.tolist() == [7, 2]
