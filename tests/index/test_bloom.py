"""Bloom filters against sets of bits."""

import numpy as np
import pytest

import grace
from grace.errors import CatalogError, ConfigError
from grace.index.bloom import BloomShape, bloom_bits, bloom_words


@pytest.mark.parametrize(("num_bits", "num_hashes"), [(64, 1), (128, 3), (256, 4), (320, 64)])
def test_words_hold_the_bits_of_each_value(num_bits, num_hashes):
    values = ["a", "é", "", *map(str, range(50))]
    words = bloom_words(values, BloomShape(num_bits, num_hashes))
    assert words.shape == (len(values), num_bits // 64)
    flags = np.unpackbits(words.view(np.uint8), axis=1, bitorder="little")
    for row, value in zip(flags, values, strict=True):
        assert set(np.flatnonzero(row)) == set(bloom_bits(value, num_bits, num_hashes))


def test_no_values_make_no_words():
    assert bloom_words([], BloomShape(128, 3)).shape == (0, 2)


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
