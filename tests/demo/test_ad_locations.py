"""Lines of the released ads, with the damage OCR did to them, against what they say."""

from __future__ import annotations

import pytest

from grace.demo.ad_locations import LocationParser
from grace.demo.city_names import CityNames
from grace.demo.places import zip_places


@pytest.fixture(scope="module")
def parser() -> LocationParser:
    return LocationParser(CityNames(zip_places()))


def spelled(places) -> list[str]:
    """`US/GA/city:Atlanta +40.2`, to compare by eye."""
    return [p.value + (f" +{p.radius_km}" if p.radius_km else "") for p in places]


FOUR_CITIES = [
    "US/MD/city:Baltimore",
    "US/MO/city:Ferguson",
    "US/MO/city:Saint Louis",
    "US/OH/city:Cleveland",
]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("United States", ["US"]),
        ("United Kingdom, United States", ["GB", "US"]),
        ("Germany, France, United Kingdom", ["DE", "FR", "GB"]),
        ("Netherlands", ["NL"]),
        ("United States: Texas", ["US/TX"]),
        ("United States: Washington", ["US/WA"]),
        ("United States: New York New York", ["US/NY/city:New York"]),
        ("United States New York New York", ["US/NY/city:New York"]),
        ("United States: New York (+25 mi) New York", ["US/NY/city:New York +40.2"]),
        ("United States: Detroit(+70 km) Michigan", ["US/MI/city:Detroit +70.0"]),
        (
            "United States: Baltimore Maryland; Ferguson, St. Louis Missouri; Cleveland Ohio",
            FOUR_CITIES,
        ),
        (
            "United States: Baltimore Maryland: Ferguson, St. Louis Missouri, Cleveland Ohio",
            FOUR_CITIES,
        ),
        (
            "United States: California; Florida: Illinois, Michigan: New Jersey",
            ["US/CA", "US/FL", "US/IL", "US/MI", "US/NJ"],
        ),
        (
            "Georgia, United States: Alabama; Arizona",
            ["GE", "US/AL", "US/AZ"],
        ),
        (
            "United States: Connecticut: Delaware; Massachusetts. Ferguson (+40 km) Missouri; "
            "New Jersey, New York (+40 km) New York, Ohio",
            [
                "US/CT",
                "US/DE",
                "US/MA",
                "US/MO/city:Ferguson +40.0",
                "US/NJ",
                "US/NY/city:New York +40.0",
                "US/OH",
            ],
        ),
    ],
)
def test_lines_that_are_whole(parser, line, expected):
    location = parser.parse(line)
    assert spelled(location.include) == sorted(expected)
    assert location.exclude == ()
    assert location.notes == []


@pytest.mark.parametrize(
    ("line", "expected", "note"),
    [
        ("United States Connections: People who like BM", ["US"], "next field"),
        (
            "United States: Texas Behaviors: Facebook access (mobile): all mobile devices "
            "Generation: Generation X Politics: US politics (very conservative)",
            ["US/TX"],
            "next field",
        ),
        (
            "United States: Baltimore Maryland; Ferguson, St. Louis Cleveland Ohio",
            FOUR_CITIES,
            "without its state",
        ),
        ("United States: San Francisco", ["US/CA/city:San Francisco"], "without its state"),
        (
            "United States: Charlotte (+25 Connections: People who like BM",
            ["US/NC/city:Charlotte +40.2"],
            "without a unit",
        ),
        (
            "United States: Ferguson mi), St. Louis(+50 mi) Missouri",
            ["US/MO/city:Ferguson +80.5", "US/MO/city:Saint Louis +80.5"],
            "radius unreadable",
        ),
        ("United States: Baton Louisiana", ["US/LA/city:Baton Rouge"], "city's name"),
        ("United States: Carolina; Ohio", ["US/NC", "US/OH"], "state's name"),
        ("United States: New Mexico; Arizona (+25 mi) Texas", ["US/NM"], "city unknown"),
    ],
)
def test_damaged_lines_are_read_and_noted(parser, line, expected, note):
    location = parser.parse(line)
    assert spelled(location.include) == expected
    assert any(note in said for said in location.notes)


@pytest.mark.parametrize("separator", [";", "."])
def test_excluded_places(parser, separator):
    line = f"United States Exclude Location: United States: California{separator} Illinois"
    location = parser.parse(line)
    assert spelled(location.include) == ["US"]
    assert spelled(location.exclude) == ["US/CA", "US/IL"]


def test_excluded_state_of_the_name_of_an_included_city(parser):
    location = parser.parse(
        "United States: Washington (+50 mi) District Exclude Location: United States: Washington"
    )
    assert spelled(location.include) == ["US/DC/city:Washington +80.5"]
    assert spelled(location.exclude) == ["US/WA"]


def test_a_pin_replaces_the_centre_of_the_city(parser):
    (place,) = parser.parse(
        "United States: Latitude 41.88 Longitude -87.71 Chicago (+16 km) Illinois"
    ).include
    assert (place.latitude, place.longitude, place.radius_km) == (41.88, -87.71, 16.0)


def test_repeated_places_count_once(parser):
    assert spelled(parser.parse("United States: Texas; Texas").include) == ["US/TX"]
