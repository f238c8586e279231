"""Tokens of users and codes, and how a history becomes an input."""

import numpy as np
import pytest
import torch
from model_cases import SCHEMA, small_index
from t5_cases import TOKENS

import grace
from grace.errors import ConfigError, ModelError, RequestError
from grace.model.t5 import TokenMap, assembled, shifted
from grace.model.t5.features import HistoryFeatures

FEATURES = HistoryFeatures(TOKENS, max_items=3)


def test_layout():
    tokens = TokenMap.of((256, 256, 4), 2000)
    assert tokens == TokenMap((2002, 2258, 2514), (256, 256, 4), 2000, 2)
    assert (tokens.num_levels, tokens.num_codes, tokens.vocab_size) == (3, 256, 2518)
    assert tokens.tokens(torch.tensor([[0, 1, 3]])).tolist() == [[2002, 2259, 2517]]
    assert tokens.user_tokens(torch.tensor([0, 1999, 2000, 2**62])).tolist() == [
        2, 2001, 2, 2**62 % 2000 + 2,
    ]  # fmt: skip
    assert TokenMap.of((3,)).starts == (2,)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (((), ()), "an entry per level"),
        (((2, 9), (3,)), "an entry per level"),
        (((2,), (0,)), "sizes of at least 1"),
        (((2,), (True,)), "integers of at least 0"),
        (((-1,), (3,)), "integers of at least 0"),
        (((2, 4), (3, 3)), "the block from 2 of 3 reaches into the one from 4"),
        (((0,), (3,)), "reaches into"),
        (((3,), (3,), 5, 2), "reaches into"),
        (((9,), (3,), 5, 1), "the block from 0 of 2 reaches into the one from 1"),
    ],
)
def test_wrong_layouts(arguments, message):
    with pytest.raises(ConfigError, match=message):
        TokenMap(*arguments)


def test_blocks_anywhere():
    """As other programs lay them out: levels in another order, users last."""
    tokens = TokenMap((10, 2), (4, 8), 3, 20)
    assert tokens.vocab_size == 23
    assert tokens.tokens(torch.tensor([3, 7])).tolist() == [13, 9]


def test_inputs_of_every_length():
    items = TOKENS.tokens(torch.tensor([[[0, 1, 2], [3, 4, 0]]] * 3))
    ids, mask = assembled(items, torch.tensor([0, 1, 2]), 3, torch.tensor([5, 0, 8]))
    first, second = items[0].tolist()
    assert ids.tolist() == [
        [5, 1] + [0] * 9,
        [0, *first, 1] + [0] * 6,
        [8, *first, *second, 1] + [0] * 3,
    ]
    assert mask.int().tolist() == [
        [1, 1] + [0] * 9,
        [0] + [1] * 4 + [0] * 6,
        [1] * 8 + [0] * 3,
    ]
    without, mask = assembled(items, torch.tensor([0, 1, 2]), 3)
    assert without[2].tolist() == [*first, *second, 1, 0, 0, 0]
    assert mask.sum(1).tolist() == [1, 4, 7]


def test_the_decoder_reads_what_came_before():
    assert shifted(torch.tensor([[9, 14, 19]])).tolist() == [[0, 9, 14]]
    assert shifted(torch.tensor([[9, 14, 19]]), start=3).tolist() == [[3, 9, 14]]


def test_features_become_inputs():
    index = small_index()
    rows = [
        {"history": [1, 2, 3, 4, 1000]},
        {"history": [-5, 7], "user": 9},
        {},
        {"history": None, "user": None},
    ]
    for row in rows:
        FEATURES.check(row)
    inputs, unknown = FEATURES.encode(rows, index)
    assert unknown == [1, 1, 0, 0]
    sids = index.sids[np.asarray(index.ad_sid)[index.find_ads([2, 3, 4, 7])]]
    tokens = TOKENS.tokens(torch.from_numpy(sids)).flatten().tolist()
    assert inputs["input_ids"].tolist() == [
        [0, *tokens[:9], 1],
        [2 + 9 % 7, *tokens[9:], 1, *[0] * 6],
        [0, 1, *[0] * 9],
        [0, 1, *[0] * 9],
    ]
    assert inputs["mask"].sum(1).tolist() == [10, 5, 1, 1]


@pytest.mark.parametrize(
    ("features", "field", "message"),
    [
        ([], "features", r"expected an object, got \[\]"),
        ({"age": 3}, "features.age", "reads no such field; it reads: history, user"),
        ({"history": "abc"}, "features.history", "expected a list of ad ids, got 'abc'"),
        ({"history": [1, 2.5]}, "features.history[1]", "a string or an integer, got 2.5"),
        ({"history": [True]}, "features.history[0]", "a string or an integer, got True"),
        ({"user": "x"}, "features.user", "expected an integer from 0"),
        ({"user": -1}, "features.user", "expected an integer from 0"),
        ({"user": 2**63}, "features.user", "expected an integer from 0"),
        ({"user": True}, "features.user", "expected an integer from 0"),
    ],
)
def test_wrong_features(features, field, message):
    with pytest.raises(RequestError, match=message) as caught:
        FEATURES.check(features)
    assert caught.value.field == field


def test_an_index_that_does_not_fit():
    sids = [[0, 3, 1], [2, 0, 4]]
    index = grace.build_index(
        [{"ad_id": i, "sid": sid, "rules": {}} for i, sid in enumerate(sids)], SCHEMA
    )
    TokenMap.of((3, 4, 5)).check(index)
    for sizes, level, largest in (((2, 9, 9), 0, 2), ((9, 3, 9), 1, 3), ((9, 9, 4), 2, 4)):
        with pytest.raises(ModelError, match=f"codes at level {level}, .* largest is {largest}"):
            TokenMap.of(sizes).check(index)
    with pytest.raises(ModelError, match="SIDs of 2 tokens, the index holds SIDs of 3"):
        TokenMap.of((9, 9)).check(index)
