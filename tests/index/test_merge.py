"""A merged delta is, to the byte, what a full rebuild gives."""

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import cases

from grace.catalog import Changes, Schema, read_catalog
from grace.errors import CatalogError
from grace.index.bloom import BloomShape
from grace.index.build import build_data
from grace.index.merge import merge_data
from grace.index.storage import tensors_of


def catalog_of(ads, schema):
    if ads:
        return read_catalog(ads, schema)
    some = read_catalog([{"ad_id": 0, "sid": [0]}], schema)
    return replace(
        some, ad_ids=some.ad_ids[:0], sids=np.empty((0, 0), np.int32),
        ad_signatures=some.ad_signatures[:0], paused=some.paused[:0],
    )  # fmt: skip


def merged(base_ads, new_ads, removed, schema, workers=1):
    base = build_data(read_catalog(base_ads, schema), BloomShape())
    kind = pa.int64() if isinstance(base_ads[0]["ad_id"], int) else pa.large_string()
    changes = Changes(catalog_of(new_ads, schema), pa.array(removed, kind))
    return merge_data(base, changes, workers)


def rebuilt(base_ads, new_ads, removed, schema):
    left = {ad["ad_id"]: ad for ad in base_ads} | {ad["ad_id"]: ad for ad in new_ads}
    ads = [ad for ad_id, ad in left.items() if ad_id not in set(removed)]
    return build_data(read_catalog(ads, schema), BloomShape()) if ads else None


def assert_same(one, other):
    tensors, others = tensors_of(one), tensors_of(other)
    assert tensors.keys() == others.keys()
    for name, tensor in tensors.items():
        assert tensor.dtype == others[name].dtype, name
        assert tensor.shape == others[name].shape, name
        assert tensor.equal(others[name]), name


@st.composite
def deltas(draw):
    """A base, ads that are new or changed, and ids to remove, of one random catalogue."""
    case = draw(cases(num_requests=1))
    rng = np.random.default_rng(case.seed)
    fate = rng.choice(5, len(case.ads), p=(0.4, 0.2, 0.15, 0.15, 0.1))
    fate[rng.integers(len(fate))] = 0  # a base is not empty
    # 0 stays, 1 is new, 2 gets the rules and SID of another, 3 is removed, 4 is in neither
    base = [ad for ad, f in zip(case.ads, fate, strict=True) if f in (0, 2, 3)]
    new = [ad for ad, f in zip(case.ads, fate, strict=True) if f == 1]
    for ad, f in zip(case.ads, fate, strict=True):
        if f == 2:
            new.append(case.ads[rng.integers(len(case.ads))] | {"ad_id": ad["ad_id"]})
    rng.shuffle(new)
    removed = [ad["ad_id"] for ad, f in zip(case.ads, fate, strict=True) if f in (3, 4)]
    return Schema.from_dict({"attributes": case.schema}), base, new, removed


@given(deltas(), st.sampled_from((1, 3)))
def test_a_merge_gives_what_a_rebuild_gives(delta, workers):
    schema, base, new, removed = delta
    assert_same(merged(base, new, removed, schema, workers), rebuilt(base, new, removed, schema))


def test_texts_that_share_a_hash_keep_the_order_of_their_numbers():
    from grace.index.merge import _order_equal_hashes

    hashes = np.array([1, 3, 3, 3, 5, 7, 7])
    numbers = np.array([9, 4, 8, 2, 0, 6, 5])
    _order_equal_hashes(hashes, numbers)
    assert numbers.tolist() == [9, 2, 4, 8, 0, 5, 6]


SCHEMA = Schema.from_dict({"attributes": [{"name": "place", "kind": "set"}]})
BASE = [{"ad_id": i, "sid": [i, 0], "rules": {"place": {"include": [str(i)]}}} for i in range(4)]


def test_values_that_nobody_names_any_more_are_dropped():
    data = merged(BASE, [], [1, 3], SCHEMA)
    assert data.tables.rules[0].values.to_arrow().to_pylist() == ["0", "2"]
    assert len(data.tables.signatures) == 2


def test_removing_what_is_not_there_changes_nothing():
    assert_same(merged(BASE, [], [77], SCHEMA), rebuilt(BASE, [], [], SCHEMA))


@pytest.mark.parametrize(
    ("new", "removed", "words"),
    [
        ([{"ad_id": "a", "sid": [0, 0]}], [], "ad_id: expected integers as in the index"),
        ([{"ad_id": 9, "sid": [0]}], [], "sid: expected 2 tokens as in the index, got 1"),
        ([], [0, 1, 2, 3], "would leave no ad"),
    ],
)
def test_a_delta_that_does_not_fit_is_refused(new, removed, words):
    with pytest.raises(CatalogError, match=words):
        merged(BASE, new, removed, SCHEMA)
