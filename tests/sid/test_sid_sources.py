"""Vectors from text and from behaviour, and how sources are put together."""

from __future__ import annotations

import sys
import types

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grace.errors import SidError
from grace.sid import (
    Source,
    behaviour_embeddings,
    combine,
    sentence_embeddings,
    text_embeddings,
)
from grace.sid.behaviour import count_pairs, positive_pmi

HISTORIES = st.lists(st.lists(st.integers(0, 7), max_size=9), min_size=1, max_size=12)


def cosine(left: np.ndarray, right: np.ndarray) -> float:
    return float(left @ right / np.linalg.norm(left) / np.linalg.norm(right))


def test_tf_idf_follows_its_formula_where_nothing_is_truncated():
    texts = ["Café noir", "cafe cafe 5", "noir"]  # terms 5, cafe, noir
    tf = np.array([[0, 1, 1], [1, 1 + np.log(2), 0], [0, 0, 1]])
    df = np.array([1, 2, 2])
    weights = tf * (1 + np.log((1 + 3) / (1 + df)))
    expected = weights / np.linalg.norm(weights, axis=1, keepdims=True)
    np.testing.assert_allclose(text_embeddings(texts, dimensions=3), expected, rtol=1e-6)


def test_truncated_text_keeps_items_with_shared_words_together():
    texts = [
        f"{color} {thing} {i}" for i in range(20) for color in ("red", "blue") for thing in ("hat",)
    ]
    vectors = text_embeddings(texts, dimensions=4)
    assert vectors.shape == (40, 4)
    assert vectors.dtype == np.float32
    assert cosine(vectors[0], vectors[2]) > cosine(vectors[0], vectors[1])


def test_a_text_without_words_is_a_zero_row():
    texts = ["one two", "", " -!", "two three", "three four five six", "one six"]
    assert (~text_embeddings(texts, dimensions=2).any(axis=1)).tolist()[1:3] == [True, True]
    with pytest.raises(SidError, match="none of the 2 items has any text"):
        text_embeddings(["", "..."])


@given(HISTORIES, st.integers(1, 4))
def test_pairs_are_counted_as_a_loop_would(histories, window):
    expected = np.zeros((8, 8))
    for history in histories:
        for i, left in enumerate(history):
            for j, right in enumerate(history):
                if left != right and abs(i - j) <= window:
                    expected[left, right] += window + 1 - abs(i - j)
    counts = count_pairs(histories, 8, window)
    np.testing.assert_array_equal(counts.toarray(), expected)
    if expected.any():
        totals = expected.sum(axis=1)
        context = totals**0.75 / (totals**0.75).sum()
        with np.errstate(divide="ignore", invalid="ignore"):
            pmi = np.nan_to_num(np.maximum(np.log(expected / np.outer(totals, context)), 0))
        np.testing.assert_allclose(positive_pmi(counts).toarray(), pmi, atol=1e-12)


def test_a_window_beyond_all_histories_costs_nothing():
    counts = count_pairs([[0, 1], [1, 2, 0]], 3, 1_000_000_000).toarray()
    far = 1_000_000_000
    assert counts.tolist() == [[0, 2 * far - 1, far], [2 * far - 1, 0, far], [far, far, 0]]
    assert not count_pairs([[], []], 3, far).nnz


@given(HISTORIES, st.randoms(use_true_random=False))
def test_the_order_of_users_does_not_matter(histories, random):
    shuffled = random.sample(histories, len(histories))
    np.testing.assert_array_equal(
        behaviour_embeddings(histories, 8, dimensions=3),
        behaviour_embeddings(shuffled, 8, dimensions=3),
    )


def test_items_seen_together_lie_close_and_unseen_items_are_zero():
    rng = np.random.default_rng(0)
    histories = [
        (10 * (user % 2) + rng.permutation(10)[:6]).tolist() for user in range(200)
    ]  # two tastes, ten items each
    vectors = behaviour_embeddings(histories, 21, dimensions=2)
    assert vectors.shape == (21, 2)
    assert cosine(vectors[0], vectors[1]) > 0.9
    assert cosine(vectors[0], vectors[10]) < 0.1
    assert not vectors[20].any()
    assert not behaviour_embeddings([[3], []], 5).any()


def test_sources_are_normalised_weighted_and_filled_with_their_mean():
    text = np.array([[3, 0], [0, 0.5], [3, 4]], np.float32)
    behaviour = np.array([[0, 0], [7, 0], [0, 7]], np.float32)
    combined = combine(
        [
            Source(name="text", vectors=text),
            Source(name="behaviour", vectors=behaviour, weight=4.0),
        ]
    )
    expected = [[1, 0, 1, 1], [0, 1, 2, 0], [0.6, 0.8, 0, 2]]
    np.testing.assert_allclose(combined, expected, rtol=1e-6)
    assert combined.dtype == np.float32


def test_a_source_that_knows_no_item_adds_nothing():
    nothing = Source(name="behaviour", vectors=np.zeros((2, 3), np.float32))
    assert not combine([nothing]).any()


def test_a_missing_sentence_transformer_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "sentence_transformers", None)
    with pytest.raises(SidError, match=r"pip install grace\[sentence-transformers\]"):
        sentence_embeddings(["text"], "folder")


def test_a_sentence_transformer_encodes_texts_and_leaves_empty_ones_zero(monkeypatch):
    class SentenceTransformer:
        def __init__(self, name):
            if name != "good":
                raise OSError("no such model")

        def encode(self, texts, show_progress_bar):
            return np.array([[len(text) + 1, 1] for text in texts])

    package = types.ModuleType("sentence_transformers")
    package.SentenceTransformer = SentenceTransformer
    monkeypatch.setitem(sys.modules, "sentence_transformers", package)
    assert sentence_embeddings(["ab", " "], "good").tolist() == [[3, 1], [0, 0]]
    with pytest.raises(SidError, match="bad: cannot be loaded: no such model"):
        sentence_embeddings(["ab"], "bad")
