"""Requests: people somewhere in the world, or a sweep's visitors."""

from __future__ import annotations

from datetime import UTC, datetime

import numpy as np

from benchmarks.generator.atlas import Atlas, atlas
from benchmarks.generator.campaigns import GENDERS, interests
from benchmarks.generator.place_rules import markets
from benchmarks.generator.spec import AT, VISITOR_AGE, WILDCARD, Spec

AGES = (13, 75)
MIN_PLACES = 3  # city, region, country
# Where else a person has been: cities near home, in the country, on the continent, anywhere.
NEAR, COUNTRY, CONTINENT = 0.6, 0.85, 0.95


def make_requests(spec: Spec, num_requests: int) -> list[dict]:
    """Return requests for a catalogue of this spec; the first n are the same for any number.

    People live in cities by population and carry the cities, regions and countries they have been
    to (`geo`, 3 to `request_places` values), or `request_places` places drawn at random and a
    country by the real ads' (`uniform`). In a sweep, request i is the visitor of tier i modulo
    their number; all its places but the wildcard are of no rule.
    """
    earth = atlas()
    moment = datetime.fromtimestamp(AT, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    names = earth.names.to_pylist()
    requests = []
    for number in range(num_requests):
        if spec.selectivity:
            attributes = _visitor(spec, number)
        else:
            attributes = _person(spec, number, names, earth)
        requests.append({"id": str(number), "attributes": attributes, "features": {}, "at": moment})
    return requests


def _person(spec: Spec, number: int, names: list[str], earth: Atlas) -> dict:
    generator = np.random.default_rng([spec.seed, 1, number])
    codes, shares = interests()
    attributes = {
        "age": int(generator.integers(AGES[0], AGES[1], endpoint=True)),
        "gender": GENDERS[generator.integers(len(GENDERS))],
        "interest": codes[np.searchsorted(shares, generator.random(), side="right")],
    }
    if spec.places == "geo":
        home = int(earth.anywhere(generator.random()))
        country = names[earth.country[home]]
        places = _been_to(spec, home, generator, earth)
    else:
        weights, sets = markets()
        country = sets[np.searchsorted(weights, generator.random(), side="right")][0]
        wanted = min(spec.request_places, earth.num_values)
        places = generator.choice(earth.num_values, wanted, replace=False).tolist()
    return {"country": country, **attributes, "place": [names[place] for place in places]}


def _been_to(spec: Spec, home: int, generator: np.random.Generator, earth: Atlas) -> list[int]:
    """Value ids of places, home first, without repeats."""
    most = max(spec.request_places, 1)
    wanted = int(generator.integers(min(MIN_PLACES, most), most, endpoint=True))
    near = earth.near(home)
    city, places = home, {}
    for _ in range(16 * wanted):  # in the smallest countries there is little new to see
        visited = (earth.city_value(city), earth.region_value(city), earth.country[city])
        places |= dict.fromkeys(map(int, visited))
        if len(places) >= wanted:
            break
        scope, u = generator.random(2)
        if scope < NEAR and len(near):
            city = int(near[int(u * len(near))])
        elif scope < COUNTRY:
            city = int(earth.within("country", np.array([home]), u)[0])
        elif scope < CONTINENT:
            city = int(earth.within("continent", np.array([home]), u)[0])
        else:
            city = int(earth.anywhere(u))
    return list(places)[:wanted]


def _visitor(spec: Spec, number: int) -> dict:
    strange = [f"{WILDCARD}/{place}" for place in range(1, spec.request_places)]
    return {
        "country": WILDCARD,
        "age": VISITOR_AGE,
        "gender": WILDCARD,
        "interest": WILDCARD,
        "place": [WILDCARD, *strange],
        "tier": spec.tiers[number % len(spec.tiers)],
    }
