"""Requests that native code reads are read as Python reads them; all others are left to Python."""

from __future__ import annotations

import enum
import json
from datetime import UTC, datetime

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from model_cases import FIELDS

import grace
from grace import _native
from grace.catalog import parse_targeting
from grace.errors import RequestError
from grace.model import FeatureSpec
from grace.model.feature_reader import FeatureReader
from grace.retrieve.request import (
    Request,
    RequestText,
    parse_request,
    read_requests,
    readable_id,
)

FLAG = {"name": "flag", "kind": "categorical", "values": [True, 7, "7é", "😀"]}
SPEC = FeatureSpec.from_dict({"fields": [*FIELDS["fields"], FLAG]})
VALUES = ["US", "é", "日本", "😀", "5", "true", "-3", "a" * 70, "never named"]
IDS = {
    "text": ["a", "é", "日", "😀", "7", "b" * 40],
    "integer": [1, 7, 100, -(2**63), 2**63 - 1, 10**12],
}


def make_index(kind: str) -> grace.Index:
    schema = {
        "attributes": [
            {"name": "age", "kind": "range"},
            {"name": "country", "kind": "categorical"},
            {"name": "places", "kind": "set"},
        ]
    }
    rules = [
        {"country": {"include": VALUES[:3]}, "places": {"include": VALUES[:8]}},
        {"age": {"min": 18}, "places": {"exclude": VALUES[3:6]}, "country": {"exclude": ["5"]}},
    ]
    rows = [
        {"ad_id": ad_id, "sid": [i % 3, i % 2, i % 5], "rules": rules[i % 2]}
        for i, ad_id in enumerate(IDS[kind])
    ]
    return grace.build_index(rows, schema)


INDEXES = {kind: make_index(kind) for kind in IDS}
READERS = {kind: FeatureReader(SPEC, index) for kind, index in INDEXES.items()}


class Text(str):
    """A str that is not exactly one, and equals only what it likes."""

    __hash__ = str.__hash__

    def __eq__(self, other):
        return str.__eq__(self, other)


class Number(enum.IntEnum):
    SEVEN = 7


class Table(dict):
    pass


class Row(list):
    pass


odd = st.sampled_from([
    None, True, False, 0, -0.0, 7, 7.0, 2**53, 2**53 + 1, -(2**63), 2**63, 2**64, 10**400, -1,
    1e100, 1.0000001e100, 1e11, 1e12, float("nan"), float("inf"), "\ud800", "", "7", Text("US"),
    Text("7"), Number.SEVEN, np.int64(7), np.float64(7.5), (), ("US",), Row(["US"]), b"US", {},
    Table(), [], ["US", None], [["US"]], {"ad_id": 1}, object(), datetime(2026, 1, 1, tzinfo=UTC),
])  # fmt: skip
texts = st.sampled_from([*VALUES, *IDS["text"]]) | st.text(max_size=4)
scalars = texts | st.integers(-9, 9) | st.booleans() | st.integers(-(2**70), 2**70)
numbers = st.integers(-(2**54), 2**54) | st.floats() | st.integers(0, 99)
times = (
    st.none()
    | st.datetimes(timezones=st.none() | st.timezones()).map(datetime.isoformat)
    | st.sampled_from([
        "2026-01-31T00:00:00Z", "2026-01-31 00:00:00.123+05:30", "2024-02-29T23:59:59.000001-00:00",
        "2023-02-29T00:00:00Z", "2026-01-31T24:00:00Z", "2026-01-31T00:00:60Z", "2026-01-31",
        "2026-01-31T00:00:00", "2026-01-31T00:00:00.1234Z", "2026-01-31T00:00:00+24:00", "soon",
        "20260131T000000Z", "2026-01-31t00:00:00Z", "2026-13-01T00:00:00Z", "1900-01-01T00:00:00Z",
        "2199-12-31T23:59:59.999999Z", "2026-W05-6T00:00:00Z", "\uff12026-01-31T00:00:00Z",
        "2026-01-31T00:00:00+05:30:15", "2026-01-31T00:00Z", "2026-01-31T00:00:00z",
    ])
)  # fmt: skip
event_times = times | st.integers(-9, 99) | st.floats(0, 99) | st.sampled_from([1e11, 1.1e11])
ad_ids = st.sampled_from([*IDS["text"], *IDS["integer"], 5, "unknown"]) | scalars


def tables(parts: dict, required: tuple = ()) -> st.SearchStrategy[dict]:
    """Dicts in any order, now and then with a key too many or a value of any kind."""
    optional = {key: value for key, value in parts.items() if key not in required}
    made = st.fixed_dictionaries({key: parts[key] for key in required}, optional=optional)
    spoilt = st.tuples(made, st.sampled_from([*parts, "more", Text("age"), 5]), odd).map(
        lambda drawn: drawn[0] | {drawn[1]: drawn[2]}
    )
    turned = made.map(lambda table: dict(reversed(table.items())))
    return st.one_of(made, made, made, turned, spoilt)


event = tables({"ad_id": ad_ids, "action": st.none() | scalars, "at": event_times}, ("ad_id",))
steady = st.lists(
    st.builds(
        lambda ad_id, action: {"ad_id": ad_id, "action": action},
        ad_ids, st.sampled_from(["view", "buy", "?"]),
    ),
    max_size=9,
).flatmap(
    lambda events: st.lists(st.floats(0, 1e6) | st.integers(0, 2**40), min_size=len(events)).map(
        lambda moments: [
            one | {"at": at}
            for one, at in zip(events, sorted(moments)[: len(events)], strict=True)
        ]
    )
)  # fmt: skip
histories = steady | st.lists(event, max_size=4)
attributes = tables({
    "age": numbers | st.lists(numbers, max_size=2) | st.none(),
    "country": scalars | st.lists(scalars, max_size=2) | st.none(),
    "places": st.lists(texts, max_size=12) | st.lists(scalars, max_size=4) | scalars,
})  # fmt: skip
features = tables({
    "gender": scalars | st.none(), "age": numbers, "flag": scalars,
    "genres": st.lists(st.sampled_from("abcd"), max_size=6) | st.lists(scalars, max_size=5),
    "clicks": histories, "saves": histories,
})  # fmt: skip
requests = tables(
    {
        "id": texts | st.integers(), "attributes": attributes | st.none(),
        "features": features | st.none(), "at": times.filter(lambda at: at is not None),
        "top_k": st.none() | st.integers(-1, 3),
    },
    ("id", "at"),
)  # fmt: skip


class PythonOnly:
    """A path and an index for which nothing is plain."""

    def __init__(self, kind: str):
        self.compile = INDEXES[kind].compile
        self.read = READERS[kind].read


def same(a: object, b: object) -> bool:
    """Equal, of one type, bit by bit."""
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    if isinstance(a, tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and a == b


def attempt(call, *arguments) -> object:
    """What a call returns, or what it raises."""
    try:
        return call(*arguments)
    except Exception as error:
        return error


def check(raws: list, kind: str) -> None:
    """All of them together with their texts, in either spelling, are read as Python reads them."""
    given = list(raws)
    for raw in raws:
        for ascii_only in (True, False):
            try:
                text = json.dumps(raw, ensure_ascii=ascii_only, allow_nan=False).encode()
            except (TypeError, ValueError):
                continue
            given.append(RequestText(text))
    reader, python = READERS[kind], PythonOnly(kind)
    outcomes = read_requests(given, INDEXES[kind], reader)
    for raw, outcome in zip(given, outcomes, strict=True):
        raw = json.loads(raw) if isinstance(raw, RequestText) else raw
        expected = attempt(parse_request, raw, python, python)
        if isinstance(expected, Exception):
            assert (type(outcome), str(outcome)) == (type(expected), str(expected))
            continue
        assert isinstance(outcome, Request), outcome
        assert same((outcome.id, outcome.top_k), (expected.id, expected.top_k))
        got, want = outcome.targeting, expected.targeting
        assert same(got.targeting.values, want.targeting.values)
        if raw.get("at") is not None:  # else it is now, which passes
            assert got.targeting.at == want.targeting.at
        assert same(
            (got.known, got.numbers, got.value_ids), (want.known, want.numbers, want.value_ids)
        )
        one, other = (reader.gather([r.features]) for r in (outcome, expected))
        assert same(one.unknown_items, other.unknown_items)
        for name, tensor in other.tensors.items():
            assert same(one.tensors[name].numpy(), tensor.numpy()), name


@given(st.lists(requests | odd, max_size=5), st.sampled_from(["text", "integer"]))
def test_any_requests_are_read_as_python_reads_them(raws, kind):
    check(raws, kind)


@given(st.lists(attributes | odd, min_size=1, max_size=3))
@example([{"places": ["5", 5, True, "true", "é", "é"], "age": 2**53, "country": [-3]}])
@example([{"age": 2**53 + 1}, {"age": -0.0}, {"age": [18]}, {"country": ["US", "US"]}])
def test_any_targeting(tables):
    check(
        [{"id": 1, "attributes": table, "at": "2026-01-01T00:00:00Z"} for table in tables], "text"
    )


@given(st.lists(features | odd, min_size=1, max_size=3), st.sampled_from(["text", "integer"]))
@example(
    [{"clicks": [{"ad_id": 7, "at": 0}, {"ad_id": 7, "at": np.nextafter(2**40, 0) - 1}]}], "integer"
)
def test_any_features(tables, kind):
    moment = "2026-01-01T00:00:00Z"
    check([{"id": 1, "features": table, "at": moment} for table in tables], kind)


@given(times)
def test_any_time(at):
    if at is not None:
        event_ = {"ad_id": "a", "at": at}
        check([{"id": 1, "at": at}, {"id": 1, "at": "2026-01-01T00:00:00Z",
               "features": {"clicks": [event_]}}], "text")  # fmt: skip


@pytest.mark.parametrize("kind", IDS)
def test_what_clients_send_is_plain(kind):
    """Else every property above would hold without a word read natively."""
    raw = {
        "attributes": {"age": 30, "country": "US", "places": [*VALUES, 5, True, "US"]},
        "features": {
            "gender": "f", "age": 41.5, "genres": ["a", "?"], "flag": True,
            "clicks": [
                {"ad_id": ad_id, "action": "buy", "at": "2026-01-01T00:00:00+00:00"}
                for ad_id in IDS[kind]
            ],
            "saves": [{"ad_id": ad_id, "at": at} for at, ad_id in enumerate(IDS[kind])],
        },
    }  # fmt: skip
    index = INDEXES[kind]
    at = "2026-01-01T00:00:00.5Z"
    assert index.compile_plain([raw["attributes"], {}, None], [None] * 3).count(None) == 0
    assert index.compile_plain([{}], ["2026-01-01T00:00:00.500+02:00"]) != [None]
    assert index.compile_plain([{}], [at]) == [None]
    assert READERS[kind].read_plain([raw["features"], {}]).count(None) == 0
    texts = [
        RequestText(json.dumps({"id": 1, "at": None} | raw).encode()),
        RequestText(b'{"id":""}'),
    ]
    read = _native.RequestTexts(texts)
    assert read.heads() == [(1, None), ("", None)]
    assert index.compile_texts(read).count(None) == 0
    assert READERS[kind].read_texts(read).count(None) == 0


TEXTS = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**65), 2**65) | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["id", "at", "top_k", "é", "\ud800", "\n"]), inner)
    ),
    max_leaves=9,
)


@st.composite
def damaged(draw) -> bytes:
    """A request as text, with some bytes changed, lost or put in."""
    raw = {"id": draw(texts | st.integers())} | draw(
        st.dictionaries(st.sampled_from(["attributes", "features", "at", "top_k"]), TEXTS)
    )
    text = bytearray(json.dumps(raw, ensure_ascii=draw(st.booleans())).encode(errors="replace"))
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, len(text)))
        text[at : at + draw(st.integers(0, 2))] = draw(
            st.binary(max_size=2) | st.sampled_from(list(map(str.encode, '{}[]",:\\ \t0-.eEu+tn')))
        )
    return bytes(text)


@given(st.lists(damaged() | st.binary(max_size=9), max_size=4))
@example([b'{"id":1,"top_k":0}' + b" " * 9, b"", b"{", b'{"id":"\\ud83d\\ude00"}'])
@example([b'{"id":' + b"[" * 200, b'{"id":1,"at":' + b"[" * 63 + b"]" * 63 + b"}"])
def test_a_text_that_is_plain_is_json_and_says_what_python_finds(texts):
    heads = _native.RequestTexts(list(map(RequestText, texts))).heads()
    for text, head in zip(texts, heads, strict=True):
        if head is None:
            continue
        raw = json.loads(text.decode())
        if text.count(b'"id"') == 1 and text.count(b'"top_k"') <= 1:
            assert same(head, (raw["id"], raw.get("top_k")))


def test_a_text_that_is_no_json_is_a_wrong_request():
    (outcome,) = read_requests([RequestText(b'{"id": 1')], INDEXES["text"], READERS["text"])
    assert isinstance(outcome, RequestError)
    assert outcome.field == "request"
    assert readable_id(RequestText(b'{"id": 1')) is None
    assert readable_id(RequestText(b'{"id": 1}')) == 1


def test_now_is_when_a_request_without_a_time_is_read():
    before = parse_targeting(INDEXES["text"].schema, None).at
    (outcome,) = read_requests([{"id": 1}], INDEXES["text"], READERS["text"])
    after = parse_targeting(INDEXES["text"].schema, None).at
    assert before <= outcome.targeting.targeting.at <= after


def test_rows_of_several_batches_are_put_together_in_order():
    reader = READERS["text"]
    plain = reader.read_plain([{"age": age} for age in (30, 40, 50)])
    rows = [plain[2], reader.read({"age": 20}), plain[0]]
    ages = reader.gather(rows).tensors["age"].tolist()
    assert ages == [1.0, -2.0, -1.0]
    assert reader.gather(plain) is plain[0].block
    assert reader.gather([]).tensors["age"].shape == (0,)


def test_a_wrong_request_fails_alone():
    raws = [{"id": 1}, {"id": 2, "features": {"age": "x"}}, {"id": 3, "features": {"age": 50}}]
    outcomes = read_requests(raws, INDEXES["text"], READERS["text"])
    assert isinstance(outcomes[1], RequestError)
    assert outcomes[1].field == "features.age"
    ages = READERS["text"].gather([outcomes[0].features, outcomes[2].features]).tensors["age"]
    assert np.isnan(ages[0].item())
    assert ages[1] == 1.0
