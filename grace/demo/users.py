"""MovieLens users as requests: leave-one-out, with nothing of a held-out rating in what is asked.

A user's ratings in order of (second, film id): the last is the test target, the last but one the
validation target, all before them the training part. The validation request knows the training
part, the test request knows the validation rating too.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from grace.datasets.movielens import MovieLens, Rating, User
from grace.demo.assign import iso_time
from grace.demo.places import HomePlace, ZipPlaces

HELD_OUT = 2


@dataclass(frozen=True)
class DemoRequests:
    """One entry a user, in the order of user ids.

    Attributes:
        train: rows `{"features"}` for next-event training, history = training part.
        valid, test: requests with a `target`, the id of the held-out film.
        behaviour: rows `{"items": [film id, ...]}` of the training part, oldest first.
    """

    train: list[dict]
    valid: list[dict]
    test: list[dict]
    behaviour: list[dict]


def demo_requests(data: MovieLens, zips: ZipPlaces) -> DemoRequests:
    """Turn every user into training rows and requests.

    All requests ask at the same moment, the second of the data's last rating. A user whose ZIP code
    does not resolve has no place.
    """
    asked_at = iso_time(data.last_timestamp)
    requests = DemoRequests([], [], [], [])
    for user in data.users:
        home = zips.home(user.zip_code)
        ratings = data.ratings[user.user_id]
        events = [_event(rated) for rated in ratings]
        known = len(ratings) - HELD_OUT
        requests.train.append({"features": _features(user, home, events[:known])})
        requests.behaviour.append({"items": [rated.movie_id for rated in ratings[:known]]})
        for split, seen in ((requests.valid, known), (requests.test, known + 1)):
            split.append(
                {
                    "id": str(user.user_id),
                    "attributes": {
                        "age": user.age,
                        "gender": user.gender,
                        "place": list(home.values) if home else None,
                        "watched": [str(rated.movie_id) for rated in ratings[:seen]],
                    },
                    "features": _features(user, home, events[:seen]),
                    "at": asked_at,
                    "target": ratings[seen].movie_id,
                }
            )
    return requests


def training_popularity(data: MovieLens) -> Counter[int]:
    """Return film id → number of ratings in the training part."""
    return Counter(
        rated.movie_id for ratings in data.ratings.values() for rated in ratings[:-HELD_OUT]
    )


def _event(rated: Rating) -> dict:
    return {
        "ad_id": rated.movie_id,
        "action": f"rated_{rated.rating}",
        "at": iso_time(rated.timestamp),
    }


def _features(user: User, home: HomePlace | None, history: list[dict]) -> dict:
    return {
        "age": user.age,
        "gender": user.gender,
        "occupation": user.occupation,
        "state": (home.state or None) if home else None,
        "history": history,
    }
