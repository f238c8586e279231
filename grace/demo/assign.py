"""Gives items the rules of real ads, by seed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import numpy as np

from grace.datasets.movielens import Movie
from grace.demo.places import ZipPlaces
from grace.demo.shapes import RuleShape
from grace.demo.words import targeting

RUNNING_SHARE = 0.8
PAUSED_SHARE = 0.02
SECONDS_PER_DAY = 86_400


@dataclass(frozen=True)
class Assignment:
    """What N items drew.

    Attributes:
        shapes: int64 [N], index of the rule shape.
        excluded: int64 [N], index of the item whose audience is kept away, -1 for none.
        starts, ends: int64 [N], seconds since 1970-01-01 UTC; both 0 without a window.
        paused: bool [N].
    """

    shapes: np.ndarray
    excluded: np.ndarray
    starts: np.ndarray
    ends: np.ndarray
    paused: np.ndarray


def draw_assignment(
    shapes: Sequence[RuleShape], popularity: np.ndarray, at: int, seed: int
) -> Assignment:
    """Draw what each of N items asks.

    Shapes are dealt like cards: the released ads, each with its whole combination of rules, are
    shuffled and handed out one an item; after the last ad the deck starts again. An ad that
    excludes connections keeps away the people who rated one other item, drawn with probability
    proportional to popularity. An ad that ran for D days gets a window of D days whose start is
    uniform over the stretch in which `at` falls inside it with probability `RUNNING_SHARE`;
    otherwise, as often one as the other, it has ended or is yet to start. Each item is paused with
    probability `PAUSED_SHARE`.

    Args:
        shapes: with their counts.
        popularity: float or int [N], not negative.
        at: the moment of the requests, seconds since 1970-01-01 UTC.
        seed: of everything.

    Raises:
        ValueError: if a shape excludes connections and fewer than two items are popular.
    """
    num_items = len(popularity)
    deal, exclude, window, pause = np.random.default_rng(seed).spawn(4)
    deck = deal.permutation(np.repeat(np.arange(len(shapes)), [shape.count for shape in shapes]))
    dealt = np.resize(deck, num_items)

    excludes = np.array([shape.excluded_connections > 0 for shape in shapes])[dealt]
    excluded = np.full(num_items, -1)
    if excludes.any():
        excluded[excludes] = _draw_others(np.flatnonzero(excludes), popularity, exclude)

    days = np.array([shape.days or 0 for shape in shapes])[dealt]
    seconds = days * SECONDS_PER_DAY
    margin = seconds * (1 / RUNNING_SHARE - 1) / 2
    first, last = at - seconds - margin, at + margin
    starts = np.ceil(first + window.random(num_items) * (last - first)).astype(np.int64)
    return Assignment(
        shapes=dealt,
        excluded=excluded,
        starts=np.where(days > 0, starts, 0),
        ends=np.where(days > 0, starts + seconds, 0),
        paused=pause.random(num_items) < PAUSED_SHARE,
    )


def assign_rules(
    movies: Sequence[Movie],
    shapes: Sequence[RuleShape],
    seed: int,
    *,
    popularity: Mapping[int, int],
    at: int,
    zips: ZipPlaces,
) -> list[dict]:
    """Return the demo's catalogue, one row a film, without SIDs.

    Args:
        movies: become the ads; `ad_id` is the film's id.
        shapes: whose rules are dealt, see `draw_assignment`.
        seed: of everything drawn.
        popularity: film id → number of ratings, of the training part only.
        at: the moment of the requests, seconds since 1970-01-01 UTC.
        zips: turns places into attribute values.

    Returns:
        Rows with `ad_id`, `rules`, `start`, `end` and `paused`, as every catalogue has them, and
        the free columns `title`, `genres`, `release_year` and `targeting` (the rules in words).
    """
    weights = np.array([popularity.get(movie.movie_id, 0) for movie in movies])
    drawn = draw_assignment(shapes, weights, at, seed)
    rules_of_shape = [shape.rules(zips) for shape in shapes]
    rows = []
    for i, movie in enumerate(movies):
        shape = shapes[drawn.shapes[i]]
        rules = dict(rules_of_shape[drawn.shapes[i]])
        words = targeting(shape)
        if drawn.excluded[i] >= 0:
            other = movies[drawn.excluded[i]]
            rules["watched"] = {"exclude": [str(other.movie_id)]}
            words += f", except those who rated {other.title}"
        has_window = drawn.ends[i] > 0
        rows.append(
            {
                "ad_id": movie.movie_id,
                "title": movie.title,
                "genres": ", ".join(movie.genres),
                "release_year": movie.release_year,
                "targeting": words,
                "rules": rules,
                "start": iso_time(drawn.starts[i]) if has_window else None,
                "end": iso_time(drawn.ends[i]) if has_window else None,
                "paused": bool(drawn.paused[i]),
            }
        )
    return rows


def iso_time(seconds: float) -> str:
    """Return seconds since 1970-01-01 UTC as ISO 8601 with its zone."""
    return datetime.fromtimestamp(int(seconds), UTC).isoformat()


def _draw_others(
    items: np.ndarray, popularity: np.ndarray, generator: np.random.Generator
) -> np.ndarray:
    """Draw for each of n items one other of all N items, int64 [n], by popularity."""
    if np.count_nonzero(popularity) < 2:
        raise ValueError("popularity must be positive for at least two items, to exclude another")
    chances = popularity / popularity.sum()
    drawn = generator.choice(len(chances), items.size, p=chances)
    while (same := np.flatnonzero(drawn == items)).size:
        drawn[same] = generator.choice(len(chances), same.size, p=chances)
    return drawn
