"""Ids and values by number and back."""

from dataclasses import replace

import numpy as np
import pyarrow as pa
import torch
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from grace import _native
from grace.index import lookup
from grace.index.lookup import IntegerTable, TextTable

texts = st.lists(st.text(st.characters(codec="utf-8"), max_size=8), unique=True, max_size=40)


@given(texts, texts)
def test_texts_are_found_by_what_they_say(stored, asked):
    table = TextTable.build(pa.array(stored, pa.large_string()))
    known = {text: number for number, text in enumerate(stored)}
    assert table.find(asked).tolist() == [known.get(text, -1) for text in asked]
    assert table.take(np.arange(len(stored))) == stored


@given(texts, st.text(st.characters(codec="utf-8"), max_size=8), st.integers(0, 40))
def test_texts_that_share_a_hash_stay_apart(stored, asked, alike):
    """Some of the stored ones have the hash of what is asked for, whatever they say."""
    table = TextTable.build(pa.array(stored, pa.large_string()))
    hashes = _native.hash_texts(*lookup.text_buffers(pa.array(stored, pa.large_string())), 1)
    theirs = _native.hash_texts(*lookup.text_buffers(pa.array([asked], pa.large_string())), 1)
    hashes[:alike] = theirs
    numbers = np.argsort(hashes, kind="stable")
    table = replace(
        table, hashes=torch.from_numpy(hashes[numbers]), numbers=torch.from_numpy(numbers)
    )
    known = {text: number for number, text in enumerate(stored)}
    assert table.find([asked]).tolist() == [known.get(asked, -1)]


@given(
    st.lists(st.text(max_size=80).map(lambda text: text.encode("utf-8", "replace")), max_size=20)
)
def test_the_native_hash_is_xxh64(texts):
    offsets = np.cumsum([0, *map(len, texts)])
    hashes = _native.hash_texts(np.frombuffer(b"".join(texts), np.uint8), offsets, 1)
    wanted = [xxhash.xxh64_intdigest(text) for text in texts]
    assert hashes.view(np.uint64).tolist() == wanted


int64s = st.lists(st.integers(-(2**63), 2**63 - 1), unique=True, max_size=40)


@given(int64s, int64s)
def test_integers_are_found(stored, asked):
    table = IntegerTable.build(np.array(stored, np.int64))
    known = {value: number for number, value in enumerate(stored)}
    assert table.find(asked).tolist() == [known.get(value, -1) for value in asked]
    assert table.take(np.arange(len(stored))) == stored


def test_what_is_of_another_type_is_not_found():
    assert TextTable.build(pa.array(["1", ""], pa.large_string())).find(
        [1, None, True, b"1", "1"]
    ).tolist() == [-1] * 4 + [0]
    integers = IntegerTable.build(np.array([1, 0]))
    wrong = [
        "1",
        True,
        np.True_,
        1.0,
        np.float64(1),
        2**63,
        -(2**63) - 1,
        10**400,
        None,
        torch.ones,
    ]
    assert integers.find([*wrong, 1, np.int32(0)]).tolist() == [-1] * len(wrong) + [0, 1]
    lone = TextTable.build(pa.array(["?"], pa.large_string()))
    assert lone.find(["\ud800", "?", np.str_("?")]).tolist() == [-1, 0, 0]
