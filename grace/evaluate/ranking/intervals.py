"""How sure a mean over users and training seeds is."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

RESAMPLES = 1000
_AT_ONCE = 100
QUANTILES = (0.025, 0.975)


@dataclass(frozen=True)
class Quality:
    """A mean over users and seeds with 95 % intervals.

    Attributes:
        value: mean over users of the mean over seeds; None where there is no user.
        low, high: interval over users and seeds together; over users alone where there is one seed.
        users_low, users_high: interval over users, of these very seeds.
        by_seed: mean of each seed.
        num_users: users behind it.
    """

    value: float | None
    low: float | None
    high: float | None
    users_low: float | None
    users_high: float | None
    by_seed: tuple[float, ...]
    num_users: int


def qualities(values: dict[str, np.ndarray], seed: int = 0) -> dict[str, Quality]:
    """Mean and intervals of several metrics, all from the same draws.

    Users are drawn with replacement, each with the mean over all seeds. Seeds are drawn with
    replacement, and how far the mean of those drawn is from the mean of all is added. With S seeds
    that distance is scaled by sqrt(S / (S - 1)): drawn from so few, it would be too small by that
    much. Intervals are percentiles of 1,000 draws and end at 0 and 1.

    Args:
        values: metric → float `[S, U]` from 0 to 1: seeds by users.
        seed: of the draws; the same seed gives the same intervals.
    """
    if not values:
        return {}
    table = np.stack([np.asarray(value, np.float64) for value in values.values()])  # [M, S, U]
    _, num_seeds, num_users = table.shape
    if num_users == 0:
        return {name: Quality(None, None, None, None, None, (), 0) for name in values}
    by_seed = table.mean(2)
    value = by_seed.mean(1)
    generator = np.random.default_rng(seed)
    over_users = _means_of_drawn_users(table.mean(1).T, generator)  # [R, M]
    both = over_users
    if num_seeds > 1:
        drawn = generator.integers(num_seeds, size=(RESAMPLES, num_seeds))
        away = by_seed.T[drawn].mean(1) - value
        both = over_users + np.sqrt(num_seeds / (num_seeds - 1)) * away
    low, high = np.quantile(both.clip(0, 1), QUANTILES, axis=0)
    users_low, users_high = np.quantile(over_users, QUANTILES, axis=0)
    return {
        name: Quality(
            float(value[m]),
            # A mean of few users may lie outside its percentiles by rounding alone.
            float(min(low[m], value[m])),
            float(max(high[m], value[m])),
            float(min(users_low[m], value[m])),
            float(max(users_high[m], value[m])),
            tuple(by_seed[m].tolist()),
            num_users,
        )
        for m, name in enumerate(values)
    }


def _means_of_drawn_users(values: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """Return `[R, M]`: means of `[U, M]` over U users drawn with replacement, R times."""
    num_users = len(values)
    means = []
    for first in range(0, RESAMPLES, _AT_ONCE):
        rows = min(_AT_ONCE, RESAMPLES - first)
        drawn = generator.integers(num_users, size=(rows, num_users))
        drawn += np.arange(rows)[:, None] * num_users
        times = np.bincount(drawn.ravel(), minlength=rows * num_users).reshape(rows, num_users)
        means.append(times.astype(np.float64) @ values / num_users)
    return np.concatenate(means)
