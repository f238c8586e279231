"""Made-up ads under the demo's rules."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from grace.catalog import iter_rows, parse_targeting, read_catalog
from grace.demo import synthetic
from grace.demo.eligibility import demo_schema
from grace.demo.shapes import load_shapes
from grace.demo.synthetic import demo_catalog, synthetic_requests


def test_a_catalogue_of_any_size():
    table = demo_catalog(3517, seed=0, num_levels=3, num_codes=16)
    catalog = read_catalog(table, demo_schema())
    assert catalog.ad_ids.to_pylist() == list(range(1, 3518))
    assert catalog.sids.shape == (3517, 3)
    assert np.unique(catalog.sids).tolist() == list(range(16))
    shapes = load_shapes()
    excluding = sum(shape.count for shape in shapes if shape.excluded_connections)
    running = sum(shape.count for shape in shapes if shape.days)
    rules = [row["rules"] for _, row in iter_rows(table)]
    assert sum(rule["watched"] is not None for rule in rules) == excluding
    assert 3517 - table["start"].null_count == running
    assert table["end"].null_count == table["start"].null_count
    genders = [rule["gender"]["include"] for rule in rules if rule["gender"]]
    assert (genders.count(["male"]), genders.count(["female"])) == (109, 40)


def test_chunks_do_not_show(monkeypatch):
    whole = demo_catalog(1000, seed=3)
    monkeypatch.setattr(synthetic, "CHUNK_ADS", 64)
    chunked = demo_catalog(1000, seed=3)
    assert chunked.combine_chunks().equals(whole.combine_chunks())
    assert not demo_catalog(1000, seed=4)["rules"].equals(whole["rules"])


def test_exclusions_name_other_ads_as_the_catalogue_does():
    rows = [row for _, row in iter_rows(demo_catalog(500, seed=0))]
    for row in rows:
        if row["rules"]["watched"]:
            (other,) = row["rules"]["watched"]["exclude"]
            assert 1 <= int(other) <= 500
            assert int(other) != row["ad_id"]


@pytest.mark.parametrize("num_ads", [2, 63])
def test_few_ads(num_ads):
    table = demo_catalog(num_ads, seed=0)
    assert isinstance(table, pa.Table)
    assert table.num_rows == num_ads


def test_people_are_known_in_every_attribute():
    requests = synthetic_requests(16, 1000, seed=0)
    assert requests == synthetic_requests(16, 1000, seed=0)
    for request in requests:
        asked = parse_targeting(demo_schema(), request["attributes"], request["at"])
        assert None not in asked.values
        assert "US" in request["attributes"]["place"]
