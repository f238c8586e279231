"""Where people and ads are: US ZIP codes, cities within a radius, and the values of both.

A place is written as a path, so that a request which carries every step of its own path meets a
rule on any level with plain any-of-many matching:

    US                            country, ISO 3166
    US/MN                         state
    US/MN/county:Hennepin County  county; the marker keeps it apart from a city of the same name
    US/MN/city:Minneapolis        city, spelled as in the ZIP table
"""

from __future__ import annotations

import functools
import re
import unicodedata
from dataclasses import dataclass

import numpy as np
import zipcodes

EARTH_RADIUS_KM = 6371.0088
# The ZIP table knows the boroughs and Queens' neighbourhoods by their own names only.
NEW_YORK_CITY_COUNTIES = {
    "New York County",
    "Kings County",
    "Queens County",
    "Bronx County",
    "Richmond County",
}


@dataclass(frozen=True)
class Place:
    """A place that an ad names.

    Attributes:
        country: ISO 3166 code.
        state: two letters, or empty for the whole country.
        city: as in the ZIP table where it has it, else as in GeoNames; empty for a whole state.
        radius_km: how far around the city's centre the ad reaches; None for the city alone.
        latitude, longitude: the centre in degrees, where there is a radius.
    """

    country: str
    state: str = ""
    city: str = ""
    radius_km: float | None = None
    latitude: float | None = None
    longitude: float | None = None

    @property
    def value(self) -> str:
        """The attribute value of the place itself, without its radius."""
        if self.city:
            return city_value(self.state, self.city)
        return f"{self.country}/{self.state}" if self.state else self.country


@dataclass(frozen=True)
class HomePlace:
    """Where a ZIP code lies.

    Attributes:
        values: what a request carries, widest first.
        city, state: for words and features; empty where the code is not in a US state.
    """

    values: tuple[str, ...]
    city: str = ""
    state: str = ""


def city_value(state: str, city: str) -> str:
    """Return the attribute value of a US city."""
    return f"US/{state}/city:{city}"


def normalised(name: str) -> str:
    """Return a city's name with the spellings of USPS, GeoNames and advertisers made one."""
    name = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode().lower()
    name = re.sub(r"[.']", "", name).replace("-", " ")
    for long, short in (("saint", "st"), ("fort", "ft"), ("mount", "mt")):
        name = re.sub(rf"\b{long}\b", short, name)
    name = " ".join(name.split())
    return "new york" if name == "new york city" else name


def haversine_km(
    latitude: float, longitude: float, latitudes: np.ndarray, longitudes: np.ndarray
) -> np.ndarray:
    """Return great-circle distances in km, float64 [n], from one point to n points in degrees."""
    phi, phis = np.radians(latitude), np.radians(latitudes)
    half_chord = (
        np.sin((phis - phi) / 2) ** 2
        + np.cos(phi) * np.cos(phis) * np.sin(np.radians(longitudes - longitude) / 2) ** 2
    )
    return 2 * EARTH_RADIUS_KM * np.arcsin(np.sqrt(half_chord))


class ZipPlaces:
    """The ZIP table of the package `zipcodes`: 42,789 codes, 29,788 (state, city) names.

    Attributes:
        cities: `(state, city)` of every US city with coordinates.
        latitudes, longitudes: float64 [number of cities], means over the city's ZIP codes, degrees.
    """

    def __init__(self) -> None:
        self.rows = {row["zip_code"]: row for row in zipcodes.list_all()}
        points: dict[tuple[str, str], list[tuple[float, float]]] = {}
        for row in self.rows.values():
            # Military and some one-building codes stand at (0, 0) or nowhere.
            if row["country"] == "US" and float(row["lat"] or 0):
                point = float(row["lat"]), float(row["long"])
                points.setdefault((row["state"], row["city"]), []).append(point)
        self.cities = list(points)
        centres = np.array([np.mean(city, axis=0) for city in points.values()])
        self.latitudes, self.longitudes = centres[:, 0], centres[:, 1]
        self._rule_values = functools.cache(self._find_rule_values)

    def home(self, zip_code: str) -> HomePlace | None:
        """Return where a ZIP code lies, or None if the table does not have it.

        A code carries its city under the name USPS prefers and every name USPS accepts (63135 is
        Saint Louis and Ferguson), and New York under any of its boroughs. A code outside the states
        (military mail) carries its country alone.
        """
        row = self.rows.get(zip_code)
        if row is None:
            return None
        if row["country"] != "US":
            return HomePlace((row["country"],)) if row["country"] else None
        state, county = row["state"], row["county"]
        cities = [row["city"], *row["acceptable_cities"]]
        if state == "NY" and county in NEW_YORK_CITY_COUNTIES:
            cities.append("New York")
        values = ["US", f"US/{state}"]
        if county:
            values.append(f"US/{state}/county:{county}")
        values += [city_value(state, city) for city in dict.fromkeys(cities)]
        return HomePlace(tuple(values), row["city"], state)

    def rule_values(self, place: Place) -> tuple[str, ...]:
        """Return the values a rule on `place` names, ascending.

        With a radius: the city itself and every city of the ZIP table whose centre (the mean of its
        ZIP codes) lies within it, across state borders.
        """
        return self._rule_values(place)

    def _find_rule_values(self, place: Place) -> tuple[str, ...]:
        if place.radius_km is None:
            return (place.value,)
        distances = haversine_km(place.latitude, place.longitude, self.latitudes, self.longitudes)
        inside = np.flatnonzero(distances <= place.radius_km)
        return tuple(sorted({place.value, *(city_value(*self.cities[i]) for i in inside)}))


@functools.cache
def zip_places() -> ZipPlaces:
    """Return the ZIP table, read once a process."""
    return ZipPlaces()
