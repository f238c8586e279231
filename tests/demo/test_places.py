"""ZIP codes to places, and radii to sets of cities."""

from __future__ import annotations

import math

import numpy as np
import pytest

from grace.demo.places import Place, haversine_km, normalised, zip_places


@pytest.fixture(scope="module")
def zips():
    return zip_places()


def test_a_zip_code_carries_its_path(zips):
    home = zips.home("55401")
    assert home.values == (
        "US",
        "US/MN",
        "US/MN/county:Hennepin County",
        "US/MN/city:Minneapolis",
    )
    assert (home.city, home.state) == ("Minneapolis", "MN")


def test_a_zip_code_carries_every_name_usps_accepts(zips):
    assert {"US/MO/city:Saint Louis", "US/MO/city:Ferguson"} <= set(zips.home("63135").values)


@pytest.mark.parametrize("code", ["10001", "11201", "11106", "10451", "10301"])
def test_the_boroughs_are_new_york(zips, code):
    values = zips.home(code).values
    assert values.count("US/NY/city:New York") == 1


def test_newark_is_not_new_york(zips):
    assert "US/NY/city:New York" not in zips.home("07102").values


def test_a_county_and_a_city_of_one_name_differ(zips):
    values = zips.home("21201").values
    assert "US/MD/county:Baltimore city" in values
    assert "US/MD/city:Baltimore" in values


@pytest.mark.parametrize("code", ["00000", "T8H1N", "V3N4P", ""])
def test_codes_that_do_not_resolve(zips, code):
    assert zips.home(code) is None


def test_military_mail_has_a_country_alone(zips):
    row = zips.rows["96349"]
    assert zips.home("96349").values == (row["country"],)
    assert zips.home("96349").state == ""


def test_haversine_of_known_distances():
    # A quarter of a great circle, and Minneapolis to Saint Paul.
    quarter = haversine_km(0, 0, np.array([0.0, 90.0]), np.array([90.0, 0.0]))
    np.testing.assert_allclose(quarter, math.pi / 2 * 6371.0088)
    np.testing.assert_allclose(
        haversine_km(44.98, -93.26, np.array([44.95]), np.array([-93.09])), [13.8], atol=0.1
    )


def test_a_radius_becomes_the_cities_inside_it(zips):
    place = Place("US", "DC", "Washington", 20.0, 38.9, -77.04)
    values = zips.rule_values(place)
    expected = {"US/DC/city:Washington"}
    for (state, city), latitude, longitude in zip(
        zips.cities, zips.latitudes, zips.longitudes, strict=True
    ):
        a, b = math.radians(38.9), math.radians(latitude)
        cosine = math.sin(a) * math.sin(b) + math.cos(a) * math.cos(b) * math.cos(
            math.radians(longitude + 77.04)
        )
        if 6371.0088 * math.acos(min(1.0, cosine)) <= 20.0:
            expected.add(f"US/{state}/city:{city}")
    assert set(values) == expected
    assert list(values) == sorted(values)
    assert {"US/MD/city:Bethesda", "US/VA/city:Arlington"} <= expected  # across state borders
    assert "US/MD/city:Baltimore" not in expected


def test_without_a_radius_a_place_is_itself(zips):
    assert zips.rule_values(Place("US", "TX")) == ("US/TX",)
    assert zips.rule_values(Place("GB")) == ("GB",)
    assert zips.rule_values(Place("US", "GA", "Atlanta")) == ("US/GA/city:Atlanta",)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("St. Louis", "Saint Louis"),
        ("New York City", "New York"),
        ("Fort Worth", "Ft Worth"),
        ("Cañon City", "Canon City"),
        ("Winston-Salem", "Winston Salem"),
    ],
)
def test_spellings_of_one_name(one, other):
    assert normalised(one) == normalised(other)
