"""Ranked lists of items as arrays: cleaned before anything is counted."""

from __future__ import annotations

import numpy as np

NONE = -1
"""Fills the end of a list that has fewer items than places."""


def check_lists(ranked: np.ndarray, num_users: int, num_items: int) -> None:
    """Refuse what is no list of items per user.

    Args:
        ranked: expected int64 `[U, K]`, item positions from 0 to N - 1, or -1 for none.
        num_users: U.
        num_items: N.

    Raises:
        ValueError: saying what was expected and what came.
    """
    if ranked.dtype != np.int64 or ranked.ndim != 2 or len(ranked) != num_users:
        raise ValueError(
            f"ranked: expected int64 [{num_users}, K], got {ranked.dtype} {list(ranked.shape)}"
        )
    outside = (ranked < NONE) | (ranked >= num_items)
    if outside.any():
        raise ValueError(
            f"ranked: expected items from 0 to {num_items - 1}, or {NONE}, got {ranked[outside][0]}"
        )


def without(ranked: np.ndarray, dropped: np.ndarray) -> np.ndarray:
    """Close up lists around places that are dropped; -1 fills the end.

    Args:
        ranked: int64 `[U, K]`.
        dropped: bool `[U, K]`.
    """
    dropped = dropped | (ranked == NONE)
    order = np.argsort(dropped, axis=1, kind="stable")
    return np.take_along_axis(np.where(dropped, NONE, ranked), order, axis=1)


def repeated(ranked: np.ndarray) -> np.ndarray:
    """Whether an item stands further up in its list already: bool `[U, K]`."""
    order = np.argsort(ranked, axis=1, kind="stable")
    by_item = np.take_along_axis(ranked, order, axis=1)
    again = np.zeros(ranked.shape, bool)
    again[:, 1:] = (by_item[:, 1:] == by_item[:, :-1]) & (by_item[:, 1:] != NONE)
    found = np.empty(ranked.shape, bool)
    np.put_along_axis(found, order, again, axis=1)
    return found


def in_history(ranked: np.ndarray, offsets: np.ndarray, items: np.ndarray) -> np.ndarray:
    """Whether the user had the item before: bool `[U, K]`.

    Args:
        ranked: int64 `[U, K]`.
        offsets: int64 `[U + 1]`, bounds of each user's history in `items`.
        items: `[E]`, item positions.
    """
    stride = np.int64(max(items.max(initial=0), ranked.max(initial=0)) + 1)
    users = np.repeat(np.arange(len(ranked)), np.diff(offsets))
    known = np.unique(users * stride + items)
    asked = np.arange(len(ranked))[:, None] * stride + ranked
    return np.isin(asked, known) & (ranked != NONE)


def places(ranked: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """Place of each user's target: int64 `[U]`, 1 for the first, 0 where it is not in the list.

    Args:
        ranked: int64 `[U, K]`, no item twice.
        targets: `[U]`, item positions.
    """
    hit = ranked == np.asarray(targets)[:, None]
    return np.where(hit.any(1), hit.argmax(1) + 1, 0)
