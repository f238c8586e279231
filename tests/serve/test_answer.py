"""An answer as bytes: what the json module reads from it, and tritonclient's BYTES."""

import json
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import grace
from grace import _native
from grace.errors import RequestError
from grace.serve import Answer
from grace.serve.answer import write_json

TEXTS = st.lists(
    st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12), min_size=1,
    max_size=12,
    unique=True,
)  # fmt: skip
INTEGERS = st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=12, unique=True)
SCORES = st.floats(width=32, allow_nan=False, allow_infinity=False)
FUNNEL = {"generated_sids": 3, "dropped": {"paused": 0, "é": 1}}


def answer_of(ad_ids, scores, sids, **fields):
    """An answer that returns every ad of an index, some twice."""
    rows = [{"ad_id": ad_id, "sid": [i]} for i, ad_id in enumerate(ad_ids)]
    index = grace.build_index(rows, {"attributes": []})
    positions = np.arange(len(scores)) % len(ad_ids)
    return Answer(
        fields.pop("id", "r"), "v1", index, positions, np.array(sids, np.int64),
        np.array(scores, np.float32), FUNNEL, **fields,
    )  # fmt: skip


@given(data=st.data(), ad_ids=st.one_of(TEXTS, INTEGERS), levels=st.integers(1, 5))
def test_the_json_module_reads_every_ad(data, ad_ids, levels):
    scores = data.draw(st.lists(SCORES, max_size=20))
    tokens = st.integers(0, 2**63 - 1)
    sids = np.array(
        data.draw(
            st.lists(
                st.lists(tokens, min_size=levels, max_size=levels),
                min_size=len(scores), max_size=len(scores),
            )
        ), np.int64,
    ).reshape(len(scores), levels)  # fmt: skip
    request_id = data.draw(
        st.one_of(st.integers(), st.text(st.characters(exclude_categories=["Cs"])))
    )
    answer = answer_of(ad_ids, scores, sids, id=request_id)
    read = json.loads(answer.to_json())
    ids = answer.index.take_ad_ids(answer.positions)
    assert list(read) == ["id", "version", "ads", "funnel"]
    assert (read["id"], read["version"], read["funnel"]) == (request_id, "v1", FUNNEL)
    assert [ad["ad_id"] for ad in read["ads"]] == ids
    assert [ad["sid"] for ad in read["ads"]] == sids.tolist()
    found = [ad["score"] for ad in read["ads"]]
    assert all(type(score) is float for score in found)
    assert np.array_equal(
        np.array(found, np.float32).view(np.int32), answer.scores.view(np.int32)
    )  # -0.0 too
    shortest = [float(str(score)) for score in answer.scores]
    assert found == shortest


@given(ad_ids=st.one_of(TEXTS, INTEGERS), data=st.data())
def test_ids_as_a_bytes_tensor(ad_ids, data):
    count = data.draw(st.integers(0, 20))
    answer = answer_of(ad_ids, [0.0] * count, np.zeros((count, 1)))
    packed, found = answer.ad_id_bytes(), []
    while packed:
        (length,) = struct.unpack("<I", packed[:4])
        found.append(packed[4 : 4 + length].decode())
        packed = packed[4 + length :]
    assert found == [str(ad_id) for ad_id in answer.index.take_ad_ids(answer.positions)]


def test_what_json_reserves_is_escaped():
    ids = ['"', "\\", "\n", "\x00\x1f", "\x7f", "</script>", "日本", "\U0001f600", "\u2028"]
    answer = answer_of(ids, [-1.0] * len(ids), np.zeros((len(ids), 1)))
    text = answer.to_json()
    assert {ad["ad_id"] for ad in json.loads(text)["ads"]} == set(ids)
    assert rb'"\u0000\u001f"' in text
    assert b'"score":-1.0' in text


def test_a_wrong_requests_answer():
    error = RequestError("id", "expected a string, got '\ud800'")
    answer = answer_of(["a"], [], np.empty((0, 1)), id=None, error=error)
    assert json.loads(answer.to_json()) == {
        "id": None, "version": "v1",
        "error": {"field": "id", "message": "expected a string, got '\\ud800'"},
    }  # fmt: skip
    assert answer.ad_id_bytes() == b""


@pytest.mark.parametrize("position", [-1, 2, 2**62])
def test_an_ad_that_is_not_there(position):
    answer = answer_of(["a", "b"], [0.0], [[0]])
    answer.positions[0] = position
    for write in (answer.to_json, answer.ad_id_bytes):
        with pytest.raises(IndexError, match=f"no ad at position {position}"):
            write()


@pytest.mark.parametrize("score", [np.nan, np.inf, -np.inf])
def test_no_json_for_what_is_no_number(score):
    with pytest.raises(ValueError, match="finite scores only"):
        answer_of([1], [score], [[0]]).to_json()


@pytest.mark.parametrize(("sids", "scores"), [(2, 1), (1, 2)])
def test_arrays_of_different_lengths(sids, scores):
    arrays = np.array([0]), np.zeros((sids, 3), np.int64), np.zeros(scores, np.float32)
    with pytest.raises(ValueError, match="one SID and one score"):
        _native.answers_json([(b"", *arrays, b"")], np.array([5]), 1)


@pytest.mark.parametrize("threads", [1, 3, 32])
def test_a_batch_is_written_as_its_answers_are(threads, monkeypatch):
    monkeypatch.setattr("torch.get_num_threads", lambda: threads)
    sizes = (0, 1, 300, 2, 0, 77)
    batch = [
        answer_of(["a", "b"], -np.arange(n, dtype=np.float32), np.full((n, 2), n), id=n)
        for n in sizes
    ]
    written = write_json(batch)
    assert written == [one.to_json() for one in batch]
    assert [json.loads(text)["id"] for text in written] == list(sizes)
    assert [len(json.loads(text)["ads"]) for text in written] == list(sizes)
    assert write_json([]) == []
