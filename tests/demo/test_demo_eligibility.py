"""Shares of eligible pairs, against one pair at a time."""

from __future__ import annotations

import numpy as np
import pytest

from grace.demo.data import deal_rules, radius_agreement
from grace.demo.eligibility import measure_eligibility, refusal_reason
from grace.demo.places import zip_places
from grace.demo.users import demo_requests


@pytest.fixture(scope="module")
def held_out(movielens):
    return demo_requests(movielens, zip_places()).test


def test_shares_are_those_of_single_pairs(movielens, held_out):
    rows = deal_rules(movielens, seed=0)
    asking = held_out[::40]
    position = {row["ad_id"]: i for i, row in enumerate(rows)}
    reasons = [[refusal_reason(row, request) for request in asking] for row in rows[::10]]
    accepted = np.array([[reason is None for reason in line] for line in reasons])
    measured = measure_eligibility(rows[::10], [r | {"target": rows[0]["ad_id"]} for r in asking])
    np.testing.assert_allclose(measured.eligible_share, accepted.mean(axis=0))
    assert measured.targets_eligible == pytest.approx(accepted[position[1]].mean())
    assert measured.pass_rates["paused"] == 1 - np.mean([row["paused"] for row in rows[::10]])


def test_the_demo_is_neither_trivial_nor_empty(movielens, held_out):
    measured = measure_eligibility(deal_rules(movielens, seed=0), held_out)
    assert 0.4 < measured.eligible_share.mean() < 0.7
    assert 0.4 < measured.targets_eligible < 0.7
    assert all(0.7 < rate < 1 for rate in measured.pass_rates.values())


def test_sets_of_cities_stand_for_radii(movielens):
    counts = radius_agreement(movielens, zip_places())
    assert counts["inside"] > 1000
    assert counts["missed"] < 0.01 * counts["inside"]
    assert counts["added"] < 0.05 * counts["inside"]
