"""People, rules and refusals in words."""

from __future__ import annotations

import pytest

from grace.demo.places import Place
from grace.demo.shapes import RuleShape, load_shapes
from grace.demo.words import person, refusal, targeting

AT = "1998-04-22T23:10:38+00:00"


def shape(age=(None, None), gender=None, include=(), exclude=()) -> RuleShape:
    return RuleShape(*age, gender, include, exclude, excluded_connections=0, days=None, count=1)


CITIES = tuple(
    Place("US", state, city, 40.2, 1.0, 2.0)
    for state, city in (("GA", "Atlanta"), ("MD", "Baltimore"), ("OH", "Cleveland"))
)


@pytest.mark.parametrize(
    ("rules", "words"),
    [
        (shape(), "people anywhere"),
        (shape((18, 45), "male", (Place("US", "TX"),)), "men 18-45 in Texas"),
        (shape((18, None), "female", (Place("US"),)), "women 18+ in the United States"),
        (
            shape((None, 17), None, (Place("CA"), Place("RU"))),
            "people up to 17 in Canada or Russia",
        ),
        (shape(include=CITIES[:1]), "people within 40 km of Atlanta GA"),
        (shape(include=CITIES[:2]), "people within 40 km of Atlanta GA or Baltimore MD"),
        (
            shape(include=(*CITIES[:2], Place("US", "OH"))),
            "people within 40 km of Atlanta GA, Baltimore MD or in Ohio",
        ),
        (
            shape(include=(*CITIES, Place("US", "TX"))),
            "people within 40 km of Atlanta GA, Baltimore MD, Cleveland OH or 1 more place",
        ),
    ],
)
def test_whom_a_shape_is_aimed_at(rules, words):
    assert targeting(rules) == words


def test_every_shipped_shape_has_words():
    assert all(targeting(shape).startswith(("people", "men", "women")) for shape in load_shapes())


def request(**attributes) -> dict:
    known = {
        "age": 34,
        "gender": "female",
        "place": ["US", "US/MN", "US/MN/county:Hennepin County", "US/MN/city:Minneapolis"],
        "watched": ["50"],
    }
    return {"attributes": known | attributes, "at": AT}


def test_a_person():
    assert person(request()) == "34, female, Minneapolis"
    assert person(request(place=None)) == "34, female, place unknown"
    assert person(request(place=["JP"])) == "34, female, JP"


def row(rules=None, start=None, end=None, paused=False) -> dict:
    return {
        "title": "Alien",
        "targeting": "men 18-45 in Texas",
        "rules": rules or {},
        "start": start,
        "end": end,
        "paused": paused,
    }


@pytest.mark.parametrize(
    ("refusing", "asking", "words"),
    [
        (row(), request(), None),
        (row(paused=True, rules={"age": {"max": 10}}), request(), "refused: Alien — is paused"),
        (
            row(start="1998-04-20T23:10:38+00:00", end=AT),
            request(),
            "refused: Alien — runs from 1998-04-20 23:10 to 1998-04-22 23:10, "
            "asked at 1998-04-22 23:10",
        ),
        (row(start=AT, end="1998-04-23T00:00:00+00:00"), request(), None),
        (
            row({"place": {"include": ["US/TX"]}}),
            request(),
            "refused: Alien — targets men 18-45 in Texas (wrong place)",
        ),
        (
            row({"age": {"max": 33}, "place": {"include": ["US/TX"]}}),
            request(),
            "refused: Alien — targets men 18-45 in Texas (wrong age)",
        ),
        (
            row({"place": {"exclude": ["US/TX"]}}),
            request(place=None),
            "refused: Alien — targets men 18-45 in Texas (wrong place)",
        ),
        (
            row({"watched": {"exclude": ["50"]}}),
            request(),
            "refused: Alien — keeps away people who rated Star Wars",
        ),
        (row({"watched": {"exclude": ["51"]}}), request(), None),
        (row({"gender": {"include": ["female"]}, "age": {"min": 34}}), request(), None),
    ],
)
def test_a_refusal(refusing, asking, words):
    assert refusal(refusing, asking, {50: "Star Wars"}) == words
