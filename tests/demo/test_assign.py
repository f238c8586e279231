"""The real ads' rules, dealt to items: by seed, in the ads' own frequencies, nothing made up."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from grace.catalog import read_catalog
from grace.datasets.movielens import Movie
from grace.demo.assign import PAUSED_SHARE, RUNNING_SHARE, assign_rules, draw_assignment
from grace.demo.eligibility import demo_schema
from grace.demo.places import Place, zip_places
from grace.demo.shapes import RuleShape, load_shapes

AT = 893_286_638


@pytest.fixture(scope="module")
def drawn():
    return draw_assignment(load_shapes(), np.arange(20_000) % 97, AT, seed=0)


def test_the_deck_is_dealt_before_it_starts_again():
    shapes = load_shapes()
    drawn = draw_assignment(shapes, np.ones(2 * 3517), AT, seed=5)
    for half in (drawn.shapes[:3517], drawn.shapes[3517:]):
        assert Counter(half.tolist()) == {i: shape.count for i, shape in enumerate(shapes)}


def test_a_seed_decides_everything(drawn):
    again = draw_assignment(load_shapes(), np.arange(20_000) % 97, AT, seed=0)
    other = draw_assignment(load_shapes(), np.arange(20_000) % 97, AT, seed=1)
    for name in ("shapes", "excluded", "starts", "ends", "paused"):
        np.testing.assert_array_equal(getattr(drawn, name), getattr(again, name))
        assert (getattr(drawn, name) != getattr(other, name)).any()


def test_windows_have_the_shape_s_length_and_mostly_run(drawn):
    days = np.array([shape.days or 0 for shape in load_shapes()])[drawn.shapes]
    np.testing.assert_array_equal(drawn.ends - drawn.starts, days * 86_400)
    starts, ends = drawn.starts[days > 0], drawn.ends[days > 0]
    running = ((starts <= AT) & (ends > AT)).mean()
    assert running == pytest.approx(RUNNING_SHARE, abs=0.02)
    assert (ends <= AT).mean() == pytest.approx((1 - RUNNING_SHARE) / 2, abs=0.02)


def test_exclusions_name_another_item_by_popularity(drawn):
    excludes = np.array([shape.excluded_connections > 0 for shape in load_shapes()])[drawn.shapes]
    np.testing.assert_array_equal(drawn.excluded >= 0, excludes)
    assert (drawn.excluded != np.arange(20_000)).all()
    weights = drawn.excluded[excludes] % 97
    assert weights.min() > 0  # items without a rating are never drawn
    assert weights.mean() == pytest.approx(65, abs=2)  # of chance proportional to 1..96


def test_two_items_exclude_each_other():
    shape = RuleShape(None, None, None, (), (), excluded_connections=1, days=None, count=1)
    drawn = draw_assignment([shape], np.array([1, 3]), AT, seed=0)
    assert drawn.excluded.tolist() == [1, 0]


def test_an_exclusion_needs_another_item():
    shape = RuleShape(None, None, None, (), (), excluded_connections=1, days=None, count=1)
    with pytest.raises(ValueError, match="at least two items"):
        draw_assignment([shape], np.array([0, 3]), AT, seed=0)


def test_few_are_paused(drawn):
    assert drawn.paused.mean() == pytest.approx(PAUSED_SHARE, abs=0.005)


def test_a_row_says_what_the_shape_says():
    shape = RuleShape(
        age_min=18,
        age_max=45,
        gender="male",
        include=(Place("US"),),
        exclude=(Place("US", "CA"), Place("US", "IL")),
        excluded_connections=1,
        days=3,
        count=7,
    )
    movies = [Movie(1, "Alien", 1979, ("Horror", "Sci-Fi")), Movie(9, "Fargo", None, ("Crime",))]
    first, second = assign_rules(
        movies, [shape], 0, popularity={1: 5, 9: 2}, at=AT, zips=zip_places()
    )
    assert first["rules"] == {
        "age": {"min": 18, "max": 45},
        "gender": {"include": ["male"]},
        "place": {"include": ["US"], "exclude": ["US/CA", "US/IL"]},
        "watched": {"exclude": ["9"]},
    }
    assert first["ad_id"] == 1
    assert first["genres"] == "Horror, Sci-Fi"
    assert first["targeting"] == (
        "men 18-45 in the United States but not in California or Illinois, "
        "except those who rated Fargo"
    )
    assert second["rules"]["watched"] == {"exclude": ["1"]}
    assert second["release_year"] is None


def test_a_shape_without_rules_has_none():
    shape = RuleShape(None, None, None, (), (), excluded_connections=0, days=None, count=1)
    movies = [Movie(1, "Alien", 1979, ()), Movie(2, "Fargo", 1996, ())]
    for row in assign_rules(movies, [shape], 0, popularity={1: 1}, at=AT, zips=zip_places()):
        assert row["rules"] == {}
        assert row["start"] is row["end"] is None
        assert row["targeting"] == "people anywhere"


def test_the_catalogue_is_one(movielens):
    rows = assign_rules(
        movielens.movies, load_shapes(), 0, popularity={1: 1, 2: 1}, at=AT, zips=zip_places()
    )
    catalog = read_catalog([row | {"sid": [row["ad_id"]]} for row in rows], demo_schema())
    assert len(catalog.ad_ids) == 1682
    assert len(catalog.windows) > 500
