"""Ids and values by number and back."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grace.index import lookup
from grace.index.lookup import IntegerTable, TextTable

texts = st.lists(st.text(st.characters(codec="utf-8"), max_size=8), unique=True, max_size=40)


@given(texts, texts)
def test_texts_are_found_by_what_they_say(stored, asked):
    table = TextTable.build(stored)
    known = {text: number for number, text in enumerate(stored)}
    assert table.find(asked).tolist() == [known.get(text, -1) for text in asked]
    assert table.take(np.arange(len(stored))) == stored


@given(texts, texts)
def test_texts_that_share_a_hash_stay_apart(stored, asked):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lookup, "_hash", lambda text: len(text) % 2)
        table = TextTable.build(stored)
        known = {text: number for number, text in enumerate(stored)}
        assert table.find(asked).tolist() == [known.get(text, -1) for text in asked]


int64s = st.lists(st.integers(-(2**63), 2**63 - 1), unique=True, max_size=40)


@given(int64s, int64s)
def test_integers_are_found(stored, asked):
    table = IntegerTable.build(np.array(stored, np.int64))
    known = {value: number for number, value in enumerate(stored)}
    assert table.find(asked).tolist() == [known.get(value, -1) for value in asked]
    assert table.take(np.arange(len(stored))) == stored


def test_what_is_of_another_type_is_not_found():
    assert TextTable.build(["1", ""]).find([1, None, True, b"1", "1"]).tolist() == [-1] * 4 + [0]
    integers = IntegerTable.build(np.array([1, 0]))
    assert integers.find(["1", True, 1.0, 2**63, None, 1]).tolist() == [-1] * 5 + [0]
