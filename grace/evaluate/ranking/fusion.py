"""Several models' lists made one, by weights that are chosen on validation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from grace.evaluate.metrics import ndcg
from grace.evaluate.ranking.lists import NONE

ROUNDS = 10
CONSTANTS = (0, 5, 20, 60)
"""Of reciprocal-rank fusion; 60 is its authors'."""


@dataclass(frozen=True)
class Fusion:
    """How lists are fused.

    Attributes:
        weights: of each list.
        constant: c of `fuse`.
    """

    weights: tuple[float, ...]
    constant: int


def fuse(lists: Sequence[np.ndarray], fusion: Fusion) -> np.ndarray:
    """Reciprocal-rank fusion (Cormack, Clarke and Büttcher, 2009), weighted.

    An item's score is the sum over lists of weight / (c + its place), places from 1; a list that
    lacks it adds nothing. Equal scores go by item. Lists of weight 0 add no item.

    Args:
        lists: each int64 `[U, K]`, no item twice, -1 for none.
        fusion: a weight for each list.

    Returns:
        int64 `[U, K]`, K of the longest list.
    """
    merged = _merge(lists)
    scores = _scores(merged, fusion)
    width = max(ranked.shape[1] for ranked in lists)
    best = np.argsort(-scores, axis=1, kind="stable")[:, :width]
    fused = np.take_along_axis(merged.items, best, axis=1)
    return np.where(np.take_along_axis(scores, best, axis=1) > 0, fused, NONE)


def choose_fusion(
    seeds: Sequence[Sequence[np.ndarray]], targets: np.ndarray, k: int = 10
) -> Fusion:
    """Choose weights and constant on validation lists, by the mean NDCG@k over seeds.

    Ensemble selection (Caruana et al., 2004): for every constant, ten times the list is added that
    helps most, once more or for the first time; weights are how often each is in. The best of all
    these is kept, the first of equal ones.

    Args:
        seeds: per seed, the lists to fuse: the same models in the same order.
        targets: `[U]`, validation targets: never those of the test split.
        k: places of NDCG.
    """
    merged = [_merge(lists) for lists in seeds]
    best, chosen = -1.0, None
    for constant in CONSTANTS:
        times = [0] * len(seeds[0])
        for _ in range(ROUNDS):
            tried = []
            for added in range(len(times)):
                counts = [count + (n == added) for n, count in enumerate(times)]
                fusion = Fusion(tuple(count / sum(counts) for count in counts), constant)
                gains = [ndcg(_places(m, fusion, targets), k).mean() for m in merged]
                tried.append((float(np.mean(gains)), -added, counts, fusion))
            gain, _, times, fusion = max(tried, key=lambda entry: entry[:2])
            if gain > best:
                best, chosen = gain, fusion
    return chosen


@dataclass(frozen=True)
class _Merged:
    """All items of a user's lists, each once.

    Attributes:
        items: int64 `[U, E]`, ascending.
        places: per list int32 `[U, E]`, the item's place there; 0 where it is not.
    """

    items: np.ndarray
    places: list[np.ndarray]


def _merge(lists: Sequence[np.ndarray]) -> _Merged:
    items = np.concatenate(lists, axis=1)
    source = np.concatenate([np.full(r.shape[1], n) for n, r in enumerate(lists)])
    place = np.concatenate([np.arange(1, r.shape[1] + 1) for r in lists])
    order = np.argsort(items, axis=1, kind="stable")
    items = np.take_along_axis(items, order, axis=1)
    source, place = source[order], place[order]
    again = np.zeros(items.shape, bool)
    again[:, 1:] = items[:, 1:] == items[:, :-1]
    slot = np.cumsum(~again, axis=1) - 1  # where an item's entries come together
    places = []
    for number in range(len(lists)):
        here = (source == number) & (items != NONE)
        found = np.zeros(items.shape, np.int32)
        rows, _ = np.nonzero(here)
        found[rows, slot[here]] = place[here]
        places.append(found)
    once = np.full(items.shape, NONE, np.int64)
    np.put_along_axis(once, slot, items, axis=1)
    return _Merged(once, places)


def _scores(merged: _Merged, fusion: Fusion) -> np.ndarray:
    """Return `[U, E]`, above 0 for items of some list that counts."""
    if len(merged.places) != len(fusion.weights):
        raise ValueError(f"weights: expected {len(merged.places)}, got {len(fusion.weights)}")
    scores = np.zeros(merged.items.shape)
    for place, weight in zip(merged.places, fusion.weights, strict=True):
        scores += np.where(place > 0, weight / (fusion.constant + np.maximum(place, 1)), 0.0)
    return scores


def _places(merged: _Merged, fusion: Fusion, targets: np.ndarray) -> np.ndarray:
    """Return the place of each target in the fused list, 0 for none."""
    scores = _scores(merged, fusion)
    hit = merged.items == targets[:, None]
    target = np.where(hit, scores, 0).max(1)
    before = scores > target[:, None]
    before |= (scores == target[:, None]) & (merged.items < targets[:, None]) & (scores > 0)
    return np.where(target > 0, before.sum(1) + 1, 0)
