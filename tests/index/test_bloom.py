"""Bloom filters against sets of bits."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import grace
from grace.errors import CatalogError, ConfigError
from grace.index.bits import pack_bits
from grace.index.bloom import BloomShape, bloom_bits, bloom_columns, bloom_flags, contains_any


@given(
    seed=st.integers(0, 2**32),
    num_rows=st.sampled_from([1, 7, 8, 9, 200]),
    num_values=st.sampled_from([0, 1, 63, 64, 65, 300]),
    num_bits=st.sampled_from([64, 256, 320]),
    num_hashes=st.integers(1, 6),
)
def test_a_row_is_hit_if_it_holds_all_bits_of_a_value(
    seed, num_rows, num_values, num_bits, num_hashes
):
    rng = np.random.default_rng(seed)
    flags = rng.random((num_rows, num_bits)) < rng.choice([0.02, 0.3, 0.9])
    values = [f"v{i}" for i in range(num_values)]
    positions = np.array([bloom_bits(v, num_bits, num_hashes) for v in values], np.int64)
    columns = bloom_columns(pack_bits(flags), num_bits)
    found = contains_any(columns, positions.reshape(num_values, num_hashes), num_rows)
    assert found.tolist() == [any(row[bits].all() for bits in positions) for row in flags]


def test_flags_are_the_bits_of_each_value():
    flags = bloom_flags(["a", "é"], BloomShape(128, 3))
    for row, value in zip(flags, ["a", "é"], strict=True):
        assert set(np.flatnonzero(row)) == set(bloom_bits(value, 128, 3))


@pytest.mark.parametrize("bits", [0, -64, 63, 100])
def test_filters_are_whole_words(bits):
    with pytest.raises(ConfigError, match="multiple of 64"):
        BloomShape(bits)


def test_a_categorical_attribute_of_many_values_is_refused_with_the_way_out():
    ads = [{"ad_id": i, "sid": [0], "rules": {"c": {"include": [str(i)]}}} for i in range(16_385)]
    schema = {"attributes": [{"name": "c", "kind": "categorical"}]}
    with pytest.raises(CatalogError, match=r"rules\.c: rules name 16,385 values.*kind: set"):
        grace.build_index(ads, schema)
    assert grace.build_index(ads[:2000], schema).num_ads == 2000
