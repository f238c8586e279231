"""Users as requests: every rating has its place, and held-out ones are nowhere else."""

from __future__ import annotations

from importlib.resources import files

import pytest

from grace.catalog import parse_targeting
from grace.demo.eligibility import demo_schema
from grace.demo.places import zip_places
from grace.demo.users import demo_requests, training_popularity
from grace.model.features import FeatureSpec


@pytest.fixture(scope="module")
def requests(movielens):
    return demo_requests(movielens, zip_places())


def history(row: dict) -> list[int]:
    return [event["ad_id"] for event in row["features"]["history"]]


def test_leave_one_out(movielens, requests):
    splits = zip(
        movielens.users,
        requests.train,
        requests.valid,
        requests.test,
        requests.behaviour,
        strict=True,
    )
    for user, train, valid, test, behaviour in splits:
        rated = [r.movie_id for r in movielens.ratings[user.user_id]]
        assert history(train) == behaviour["items"] == history(valid) == rated[:-2]
        assert history(test) == rated[:-1]
        assert (valid["target"], test["target"]) == (rated[-2], rated[-1])
        assert valid["id"] == test["id"] == str(user.user_id)
        assert "target" not in train


def test_nothing_held_out_leaks(requests):
    for train, valid, test in zip(requests.train, requests.valid, requests.test, strict=True):
        held_out = {valid["target"], test["target"]}
        assert held_out.isdisjoint(history(train))
        assert held_out.isdisjoint(history(valid))
        assert held_out.isdisjoint(map(int, valid["attributes"]["watched"]))
        assert test["target"] not in history(test)
        assert str(test["target"]) not in test["attributes"]["watched"]
        latest = test["features"]["history"][-1]["at"]
        assert all(event["at"] <= latest for event in valid["features"]["history"])


def test_popularity_counts_the_training_part_alone(requests, movielens):
    popularity = training_popularity(movielens)
    assert popularity.total() == 100_000 - 2 * 943
    seen = [item for row in requests.behaviour for item in row["items"]]
    assert popularity[50] == seen.count(50)


def test_places(requests):
    unknown = [request for request in requests.test if request["attributes"]["place"] is None]
    assert len(unknown) == 943 - 908
    assert all(request["features"]["state"] is None for request in unknown)
    first = requests.test[0]
    assert first["attributes"]["place"][-1] == "US/AZ/city:Tucson"
    assert first["features"]["state"] == "AZ"


def test_requests_are_requests(requests):
    """The engine's own checks take every request, and all ask at one moment."""
    spec = FeatureSpec.load(str(files("grace.demo").joinpath("features.yaml")))
    spec = spec.fit([row["features"] for row in requests.train])
    moments = set()
    for request in requests.test + requests.valid:
        moments.add(parse_targeting(demo_schema(), request["attributes"], request["at"]).at)
        spec.check(request["features"])
    assert moments == {893_286_638 * 1_000_000}
