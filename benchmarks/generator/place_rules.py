"""Where campaigns run: cities that lie together, or places drawn at random."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from statistics import NormalDist

import numpy as np

from benchmarks.generator.atlas import MAX_RADIUS_KM, Atlas, atlas
from benchmarks.generator.campaigns import OWN_PLACES, excludes, is_local, targeting
from benchmarks.generator.draw import Stream, cumulate, elements
from benchmarks.generator.lists import Lists
from benchmarks.generator.spec import Spec

SAME_REGION = 0.7  # of a rule's further cities; the others are elsewhere in the country
# The uniform setting's list lengths: one and a lognormal number more, 6 on average.
MEDIAN_MORE, SIGMA_MORE = 2.4, 1.2
LENGTH_STEPS = 65_536


@dataclass(frozen=True)
class PlaceRules:
    """What campaigns ask of country and place, a list a campaign; value ids of the atlas."""

    country: Lists
    not_country: Lists
    place: Lists
    not_place: Lists


def draw_places(spec: Spec, campaigns: np.ndarray) -> PlaceRules:
    """Draw what campaigns (int64 [n], distinct) ask of country and place."""
    earth = atlas()
    # Some campaigns run where an older one does.
    u = Stream(spec.seed, "older places").uniform(campaigns)
    older = (campaigns // 2 * u).astype(np.int64) * 2 + campaigns % 2
    own = Stream(spec.seed, "own places").uniform(campaigns) < OWN_PLACES
    plans = np.where(own, campaigns, older)
    homes = earth.anywhere(Stream(spec.seed, "home").uniform(plans))
    local, exclusion = is_local(campaigns), excludes(spec, campaigns)
    broad = _broad_countries(spec, plans, homes, earth)
    if spec.places == "geo":
        cities = _local_places(spec, plans, homes, local, earth)
        place = cities.place
        country = Lists.collect(
            len(plans),
            np.concatenate([cities.country.owners, broad.owners[~local[broad.owners]]]),
            np.concatenate([cities.country.values, broad.values[~local[broad.owners]]]),
        )
        # A campaign for whole countries names them as places too.
        place = Lists.collect(
            len(plans),
            np.concatenate([place.owners, broad.owners[~local[broad.owners]]]),
            np.concatenate([place.values, broad.values[~local[broad.owners]]]),
        )
    else:
        country = _market_countries(spec, campaigns, earth)
        place = _uniform_places(spec, plans, local, earth)
    worldwide = exclusion == 3
    return PlaceRules(
        country.only(~worldwide),
        _draw_countries(spec, campaigns, worldwide, earth),
        place.only(~worldwide),
        _excluded_places(spec, campaigns, homes, exclusion == 2, earth).without(place),
    )


@dataclass(frozen=True)
class _Local:
    place: Lists
    country: Lists


@cache
def _patterns() -> tuple[np.ndarray, np.ndarray]:
    """Cumulated weights; int64/float [n, 4]: countries, regions, cities, radius in km."""
    rows = targeting()["ira"]["local (countries, regions, cities, radius km)"]
    table = np.array([row[:4] for row in rows], np.float64)
    table[:, 3] = np.minimum(table[:, 3], MAX_RADIUS_KM)
    return cumulate([row[4] for row in rows]), table


def _local_places(
    spec: Spec, plans: np.ndarray, homes: np.ndarray, local: np.ndarray, earth: Atlas
) -> _Local:
    """Cities, their neighbours within the radius, regions and countries, as real ads mix them."""
    weights, table = _patterns()
    pattern = table[Stream(spec.seed, "pattern").choose(weights, plans)]
    pattern[~local] = 0
    num_countries, num_regions, num_cities = pattern[:, :3].astype(np.int64).T

    owners, positions = elements(num_cities)
    numbers = plans[owners] * 1024 + positions
    same_region = Stream(spec.seed, "same region").uniform(numbers) < SAME_REGION
    u = Stream(spec.seed, "further city").uniform(numbers)
    cities = np.where(
        same_region,
        earth.within("region", homes[owners], u),
        earth.within("country", homes[owners], u),
    )
    cities = np.where(positions == 0, homes[owners], cities)
    radii = pattern[owners, 3]
    counts = np.where(radii > 0, earth.num_near(cities, radii), 0)
    centres, steps = elements(counts)
    near = earth.near_cities[earth.near_offsets[cities[centres]] + steps]

    region_owners, positions = elements(num_regions)
    u = Stream(spec.seed, "region").uniform(plans[region_owners] * 1024 + positions)
    in_regions = earth.within("country", homes[region_owners], u)
    first = (positions == 0) & (num_cities[region_owners] == 0)
    in_regions = np.where(first, homes[region_owners], in_regions)

    country_owners, positions = elements(num_countries)
    u = Stream(spec.seed, "country").uniform(plans[country_owners] * 1024 + positions)
    in_countries = earth.within("continent", homes[country_owners], u)

    all_owners = [owners, owners[centres], region_owners, country_owners]
    place = Lists.collect(
        len(plans),
        np.concatenate(all_owners),
        np.concatenate(
            [
                earth.city_value(cities),
                earth.city_value(near),
                earth.region_value(in_regions),
                earth.country[in_countries],
            ]
        ),
    )
    lying_in = earth.country[np.concatenate([cities, near, in_regions, in_countries])]
    return _Local(place, Lists.collect(len(plans), np.concatenate(all_owners), lying_in))


def _broad_countries(spec: Spec, plans: np.ndarray, homes: np.ndarray, earth: Atlas) -> Lists:
    """The home country and, for a few, others of its continent, as many as real ads name."""
    rows = targeting()["ira"]["countries"]
    drawn = Stream(spec.seed, "countries").choose(cumulate([count for _, count in rows]), plans)
    owners, positions = elements(np.array([number for number, _ in rows])[drawn])
    u = Stream(spec.seed, "further country").uniform(plans[owners] * 1024 + positions)
    cities = np.where(positions == 0, homes[owners], earth.within("continent", homes[owners], u))
    return Lists.collect(len(plans), owners, earth.country[cities])


def markets() -> tuple[np.ndarray, list[list[str]]]:
    """Sets of countries that real ads named, with cumulated weights."""
    rows = targeting()["ira"]["markets"]
    return cumulate([row[-1] for row in rows]), [row[:-1] for row in rows]


def _market_countries(spec: Spec, campaigns: np.ndarray, earth: Atlas) -> Lists:
    """The countries of a real ad, whatever places the campaign names."""
    weights, sets = markets()
    drawn = Stream(spec.seed, "market").choose(weights, campaigns)
    ids = {code: i for i, code in enumerate(earth.country_codes)}
    sizes = np.array([len(codes) for codes in sets])
    owners, positions = elements(sizes[drawn])
    values = np.array([ids[code] for codes in sets for code in codes])
    starts = np.cumsum(sizes) - sizes
    return Lists.collect(len(campaigns), owners, values[starts[drawn[owners]] + positions])


def _uniform_places(spec: Spec, plans: np.ndarray, local: np.ndarray, earth: Atlas) -> Lists:
    """Places of any kind, all equally likely; a repeat within a list is dropped."""
    steps = Stream(spec.seed, "length").below(LENGTH_STEPS, plans)
    owners, positions = elements(np.where(local, _lengths()[steps], 0))
    values = Stream(spec.seed, "place").below(earth.num_values, plans[owners] * 1024 + positions)
    return Lists.collect(len(plans), owners, values)


@cache
def _lengths() -> np.ndarray:
    """int64 [LENGTH_STEPS], list lengths at evenly spaced quantiles; 1 to about 400."""
    normal = NormalDist(np.log(MEDIAN_MORE), SIGMA_MORE)
    quantiles = [normal.inv_cdf((step + 0.5) / LENGTH_STEPS) for step in range(LENGTH_STEPS)]
    return 1 + np.round(np.exp(quantiles)).astype(np.int64)


def _draw_countries(spec: Spec, campaigns: np.ndarray, chosen: np.ndarray, earth: Atlas) -> Lists:
    """One to three countries of the world, by population."""
    counts = np.where(chosen, 1 + Stream(spec.seed, "countries excluded").below(3, campaigns), 0)
    owners, positions = elements(counts)
    u = Stream(spec.seed, "excluded country").uniform(campaigns[owners] * 1024 + positions)
    return Lists.collect(len(campaigns), owners, earth.country[earth.anywhere(u)])


def _excluded_places(
    spec: Spec, campaigns: np.ndarray, homes: np.ndarray, chosen: np.ndarray, earth: Atlas
) -> Lists:
    """One to three cities (of a local campaign) or regions of the home country; or any places."""
    counts = np.where(chosen, 1 + Stream(spec.seed, "places excluded").below(3, campaigns), 0)
    owners, positions = elements(counts)
    numbers = campaigns[owners] * 1024 + positions
    u = Stream(spec.seed, "excluded place").uniform(numbers)
    if spec.places == "geo":
        cities = earth.within("country", homes[owners], u)
        local = is_local(campaigns)[owners]
        values = np.where(local, earth.city_value(cities), earth.region_value(cities))
    else:
        values = (u * earth.num_values).astype(np.int64)
    return Lists.collect(len(campaigns), owners, values)
