"""Cities, regions, countries and continents as nested ranges, with how to draw from them."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from scipy.spatial import cKDTree

from benchmarks.generator.spec import WILDCARD

CITIES = Path(__file__).parent.parent / "data" / "cities.parquet"
EARTH_RADIUS_KM = 6371.0088
MAX_RADIUS_KM = 80.5
# A radius stands for the cities of this size in it: with every small town, lists would be ten
# times as long and name the same people.
MIN_NEAR_POPULATION = 100_000


class Atlas:
    """GeoNames' cities of at least 5,000 people. Value ids: countries, regions, cities, wildcard.

    Attributes:
        names: string [num_values + 1], such as US, US/CA, US/CA/5391959; the last is the wildcard.
        num_countries, num_regions, num_cities: how many; `num_values` is their sum.
        region, country, continent: int64 [num_cities], what each city lies in.
        country_codes: the countries' names, by id.
    """

    def __init__(self) -> None:
        table = pq.read_table(CITIES)
        column = {name: table[name].to_pylist() for name in ("continent", "country", "admin1")}
        self.continent, _ = _number(column["continent"])
        self.country, self.country_codes = _number(column["country"])
        regions = [f"{a}/{b}" for a, b in zip(column["country"], column["admin1"], strict=True)]
        self.region, region_names = _number(regions)
        ids = table["geonameid"].to_pylist()
        cities = [f"{region}/{city}" for region, city in zip(regions, ids, strict=True)]
        self.num_countries, self.num_regions = len(self.country_codes), len(region_names)
        self.num_cities = len(cities)
        self.num_values = self.num_countries + self.num_regions + self.num_cities
        self.wildcard = self.num_values
        self.names = pa.array([*self.country_codes, *region_names, *cities, WILDCARD])
        # Whole numbers, so that sums are exact; a city without a census counts as a thousand.
        population = np.maximum(table["population"].to_numpy(), 1000).astype(np.float64)
        self._people = np.concatenate([[0.0], np.cumsum(population)])
        self._bounds = {
            scope: np.searchsorted(ids, np.arange(ids[-1] + 2))
            for scope, ids in (
                ("region", self.region),
                ("country", self.country),
                ("continent", self.continent),
            )
        }
        self._find_near(table, population)

    def city_value(self, cities: np.ndarray) -> np.ndarray:
        """Value ids of cities."""
        return cities + (self.num_countries + self.num_regions)

    def region_value(self, cities: np.ndarray) -> np.ndarray:
        """Value ids of the regions of cities."""
        return self.region[cities] + self.num_countries

    def anywhere(self, u: np.ndarray) -> np.ndarray:
        """Cities of the world by population, from u in [0, 1)."""
        return self._city_of(u * self._people[-1])

    def within(self, scope: str, homes: np.ndarray, u: np.ndarray) -> np.ndarray:
        """Cities by population in the `region`, `country` or `continent` of each home city."""
        bounds, places = self._bounds[scope], getattr(self, scope)[homes]
        first, last = self._people[bounds[places]], self._people[bounds[places + 1]]
        return self._city_of(first + u * (last - first))

    def _city_of(self, people: np.ndarray) -> np.ndarray:
        found = np.searchsorted(self._people, people, side="right") - 1
        return np.minimum(found, self.num_cities - 1)

    def near(self, city: int) -> np.ndarray:
        """Large cities within `MAX_RADIUS_KM`, nearest first."""
        return self.near_cities[self.near_offsets[city] : self.near_offsets[city + 1]]

    def num_near(self, cities: np.ndarray, radii_km: np.ndarray) -> np.ndarray:
        """int64, how many of each city's near ones lie within its radius."""
        ends = np.searchsorted(self._near_keys, cities * 1000.0 + radii_km, side="right")
        return ends - self.near_offsets[cities]

    def _find_near(self, table: pa.Table, population: np.ndarray) -> None:
        """Fill near_offsets int64 [num_cities + 1], near_cities int64 and near_km float64."""
        phi, theta = (np.radians(table[name].to_numpy()) for name in ("latitude", "longitude"))
        phi, theta = phi.astype(np.float64), theta.astype(np.float64)
        points = np.stack(
            [np.cos(phi) * np.cos(theta), np.cos(phi) * np.sin(theta), np.sin(phi)], axis=1
        )
        large = np.flatnonzero(population >= MIN_NEAR_POPULATION)
        pairs = cKDTree(points).sparse_distance_matrix(
            cKDTree(points[large]),
            2 * np.sin(MAX_RADIUS_KM / EARTH_RADIUS_KM / 2),
            output_type="ndarray",
        )
        km = 2 * EARTH_RADIUS_KM * np.arcsin(pairs["v"] / 2)
        order = np.lexsort((pairs["j"], km, pairs["i"]))
        self.near_cities, self.near_km = large[pairs["j"][order]], km[order]
        self.near_offsets = np.searchsorted(pairs["i"][order], np.arange(self.num_cities + 1))
        self._near_keys = pairs["i"][order] * 1000.0 + self.near_km


@cache
def atlas() -> Atlas:
    """Return the atlas, read once a process."""
    return Atlas()


def _number(names: list[str]) -> tuple[np.ndarray, list[str]]:
    """Ids by first appearance, int64 [n], and the distinct names. Equal names lie together."""
    distinct = list(dict.fromkeys(names))
    ids = {name: i for i, name in enumerate(distinct)}
    return np.array([ids[name] for name in names]), distinct
