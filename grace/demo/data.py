"""The demo's data in one call; run as a module, it prints what docs/demo.md says about it.

python -m grace.demo.data [DIR]
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass

import numpy as np

from grace.datasets.movielens import MovieLens, load_movielens
from grace.demo.assign import assign_rules
from grace.demo.eligibility import measure_eligibility
from grace.demo.places import ZipPlaces, haversine_km, zip_places
from grace.demo.shapes import load_shapes
from grace.demo.users import DemoRequests, demo_requests, training_popularity


@dataclass(frozen=True)
class DemoData:
    """What the demo runs on.

    Attributes:
        movielens: people, films and ratings.
        catalog: one row a film, without SIDs, see `assign_rules`.
        requests: training rows and held-out requests.
    """

    movielens: MovieLens
    catalog: list[dict]
    requests: DemoRequests


def load_demo(path: str | os.PathLike | None = None, seed: int = 0) -> DemoData:
    """Load MovieLens-100K and deal the real ads' rules to its films.

    Args:
        path: see `load_movielens`.
        seed: of the rules.

    Raises:
        DataError: if MovieLens-100K cannot be had.
    """
    movielens = load_movielens(path)
    return DemoData(movielens, deal_rules(movielens, seed), demo_requests(movielens, zip_places()))


def deal_rules(movielens: MovieLens, seed: int) -> list[dict]:
    """Return the demo's catalogue: the shipped shapes, dealt for the data's last second."""
    return assign_rules(
        movielens.movies,
        load_shapes(),
        seed,
        popularity=training_popularity(movielens),
        at=movielens.last_timestamp,
        zips=zip_places(),
    )


def radius_agreement(movielens: MovieLens, zips: ZipPlaces) -> dict[str, int]:
    """Compare the shapes' radius rules, as sets of cities, with distances from users' ZIP codes.

    Returns:
        Counts over pairs of a distinct place with a radius and a user with US coordinates: `inside`
        by distance, of these `missed` by the set, and `added` by the set though outside.
    """
    places = {p for shape in load_shapes() for p in shape.include if p.radius_km is not None}
    homes = {user.zip_code: zips.home(user.zip_code) for user in movielens.users}
    codes = [u.zip_code for u in movielens.users if (h := homes[u.zip_code]) and h.state]
    latitudes, longitudes = (
        np.array([float(zips.rows[code][axis]) for code in codes]) for axis in ("lat", "long")
    )
    counts = {"places": len(places), "users": len(codes), "inside": 0, "missed": 0, "added": 0}
    for place in places:
        distances = haversine_km(place.latitude, place.longitude, latitudes, longitudes)
        inside = distances <= place.radius_km
        cities = set(zips.rule_values(place))
        accepted = np.array([not cities.isdisjoint(homes[code].values) for code in codes])
        counts["inside"] += int(inside.sum())
        counts["missed"] += int((inside & ~accepted).sum())
        counts["added"] += int((accepted & ~inside).sum())
    return counts


def main(path: str | None) -> None:
    """Print places, radius rules and, for five seeds, who may see what."""
    data = load_demo(path)
    test = data.requests.test
    no_place = sum(request["attributes"]["place"] is None for request in test)
    print(f"{len(test)} requests, {no_place} without a place")
    print(f"radius rules: {radius_agreement(data.movielens, zip_places())}")
    for seed in range(5):
        catalog = deal_rules(data.movielens, seed)
        seen = measure_eligibility(catalog, test)
        low, middle, high = np.percentile(seen.eligible_share, (5, 50, 95))
        rates = ", ".join(f"{check} {rate:.3f}" for check, rate in seen.pass_rates.items())
        rules = len({repr(row["rules"]) for row in catalog})
        print(f"seed {seed}: {rules} distinct rules; pass: {rates}")
        print(
            f"  eligible share of the catalogue: mean {seen.eligible_share.mean():.3f}, 5 % of "
            f"users below {low:.3f}, half below {middle:.3f}, 95 % below {high:.3f}; "
            f"held-out film eligible for {seen.targets_eligible:.3f} of users"
        )


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else None)
