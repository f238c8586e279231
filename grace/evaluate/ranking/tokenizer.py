"""Checks that make a degenerate or leaking tokenizer visible beside the quality it gives."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from grace.evaluate.metrics import Estimate, wilson
from grace.evaluate.ranking.lists import NONE, in_history, places, repeated, without

LARGEST_SHARE = 0.05
"""Of all items, on one SID: beyond, the tokenizer is reported as degenerate."""
TIE_SHARE = 0.1
"""Of recall, owed to the order within SIDs: beyond, it is reported."""
NEIGHBOURS = 10


@dataclass(frozen=True)
class TokenizerReport:
    """What SIDs say about items, and what they give away without any model.

    Attributes:
        num_items, num_sids: N, and how many distinct SIDs they have.
        items_per_sid: mean, over SIDs.
        largest_sid: items of the SID that has most.
        shared_share: items that share their SID, of all.
        ordered_recall: recall@k of the lists as they are: items of one SID by a fixed rule.
        shared_recall: recall@k if the items of a SID shared its places, each order as likely.
        neighbours: recall@10 of a list made from SIDs and training counts alone: items that share
            most codes with the newest of the history first, popular ones first among them.
        train_neighbours: the same for the last transition of the training part, which a tokenizer
            may have been fitted on.
        warnings: what is wrong, in words; empty if nothing is.
    """

    num_items: int
    num_sids: int
    items_per_sid: float
    largest_sid: int
    shared_share: float
    ordered_recall: float
    shared_recall: float
    neighbours: Estimate
    train_neighbours: Estimate
    warnings: tuple[str, ...]


@dataclass(frozen=True)
class Transitions:
    """Next items after histories.

    Attributes:
        offsets: int64 `[U + 1]`, bounds of each history in `items`; none is empty.
        items: `[E]`, item positions, oldest first.
        targets: `[U]`, what came next.
    """

    offsets: np.ndarray
    items: np.ndarray
    targets: np.ndarray


def last_training_transitions(offsets: np.ndarray, items: np.ndarray) -> Transitions:
    """Of each user with two training items or more: the last, after those before it."""
    lengths = np.diff(offsets)
    long = lengths >= 2
    keep = np.repeat(long, lengths)
    keep[offsets[1:][long] - 1] = False
    return Transitions(
        np.concatenate(([0], np.cumsum(lengths[long] - 1))),
        items[keep],
        items[offsets[1:][long] - 1],
    )


def check_tokenizer(
    sids: np.ndarray,
    ranked: np.ndarray,
    asked: Transitions,
    trained: Transitions,
    counts: np.ndarray,
    k: int = 10,
) -> TokenizerReport:
    """Judge the SIDs of a generator by its lists.

    Args:
        sids: int `[N, L]`.
        ranked: int64 `[U, K]`, lists of the generator, no item twice; K at least k.
        asked: what the lists answer.
        trained: `last_training_transitions`.
        counts: `[N]`, training events of each item.
        k: places of recall.
    """
    distinct, group, sizes = np.unique(sids, axis=0, return_inverse=True, return_counts=True)
    group = group.ravel()
    ordered = float((_within(places(ranked, asked.targets), k)).mean())
    shared = float(shared_hits(ranked, asked.targets, group, k).mean())
    found = wilson(_neighbour_hits(sids, asked, counts))
    fitted = wilson(_neighbour_hits(sids, trained, counts))
    warnings = []
    if sizes.max() > max(1, LARGEST_SHARE * len(sids)):
        warnings.append(
            f"degenerate: {sizes.max()} of {len(sids)} items share one SID, and no order among "
            "them is the model's"
        )
    if abs(ordered - shared) > TIE_SHARE * ordered:
        warnings.append(
            f"ties decide: recall@{k} is {ordered:.4f} with the items of a SID in their order, "
            f"{shared:.4f} in any"
        )
    if found.n and fitted.n and found.low > fitted.high:
        warnings.append(
            f"leaking: neighbours by SID hold {found.value:.4f} of the held-out items, but "
            f"{fitted.value:.4f} of training items, which alone they may know"
        )
    return TokenizerReport(
        num_items=len(sids),
        num_sids=len(distinct),
        items_per_sid=len(sids) / len(distinct),
        largest_sid=int(sizes.max()),
        shared_share=float(sizes[sizes > 1].sum() / len(sids)),
        ordered_recall=ordered,
        shared_recall=shared,
        neighbours=found,
        train_neighbours=fitted,
        warnings=tuple(warnings),
    )


def shared_hits(ranked: np.ndarray, targets: np.ndarray, group: np.ndarray, k: int) -> np.ndarray:
    """Chance that the target is among the first k if its SID's items come in any order: `[U]`.

    A SID's place is that of its first item in the list, and all its items stand there together.

    Args:
        ranked: int64 `[U, K]`, no item twice.
        targets: `[U]`.
        group: `[N]`, number of each item's SID.
    """
    sizes = np.bincount(group)
    groups = np.where(ranked == NONE, NONE, group[ranked])
    same = groups == group[targets][:, None]
    first = np.where(same.any(1), same.argmax(1), k)
    return np.clip((k - first) / sizes[group[targets]], 0, 1)


def _within(place: np.ndarray, k: int) -> np.ndarray:
    return (place >= 1) & (place <= k)


def _neighbour_hits(sids: np.ndarray, asked: Transitions, counts: np.ndarray) -> np.ndarray:
    if not len(asked.targets):
        return np.zeros(0, bool)
    newest = asked.items[asked.offsets[1:] - 1]
    # Twice as many as are counted: some are the user's own already.
    lists = sid_neighbours(sids, counts, 2 * NEIGHBOURS)[newest]
    unseen = without(lists, in_history(lists, asked.offsets, asked.items))
    return _within(places(unseen, asked.targets), NEIGHBOURS)


def sid_neighbours(sids: np.ndarray, counts: np.ndarray, k: int) -> np.ndarray:
    """Other items by codes shared with an item from the first on, then by count: int64 `[N, k]`.

    Args:
        sids: int `[N, L]`.
        counts: `[N]`, training events of each item; equal ones go by item.
        k: items of a list; -1 fills lists where there are fewer.
    """
    num_items, num_levels = sids.shape
    popular = np.argsort(-counts, kind="stable")
    lists = np.full((num_items, 0), NONE, np.int64)
    for level in range(num_levels, -1, -1):
        # One more than asked for, as the item itself goes out.
        lists = np.concatenate([lists, _first_of_group(sids[:, :level], popular, k + 1)], axis=1)
        itself = lists == np.arange(num_items)[:, None]
        lists = without(lists, repeated(lists) | itself)[:, :k]
    return lists


def _first_of_group(prefixes: np.ndarray, popular: np.ndarray, k: int) -> np.ndarray:
    """Return, per item, the first k items of its prefix in the order given: int64 `[N, k]`."""
    num_items = len(popular)
    if prefixes.shape[1]:
        group = np.unique(prefixes, axis=0, return_inverse=True)[1].ravel()
    else:
        group = np.zeros(num_items, np.int64)
    order = popular[np.argsort(group[popular], kind="stable")]
    start = np.searchsorted(group[order], np.arange(group.max() + 1))
    nth = np.arange(num_items) - start[group[order]]
    table = np.full((len(start), k), NONE, np.int64)
    kept = nth < k
    table[group[order][kept], nth[kept]] = order[kept]
    return table[group]
