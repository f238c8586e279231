import functools
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from model_cases import FIELDS, SPEC, random_features, small_index

from grace.errors import ConfigError, RequestError
from grace.model import FeatureSpec
from grace.model.feature_table import NUM_GAP_ROWS, FeatureTable
from grace.model.fields import FIRST_VALUE, MISSING, PADDING, UNKNOWN

INDEX = small_index()
NESTED = functools.reduce(lambda inner, _: [inner], range(100_000), 0)


def encode_one(**features) -> dict[str, torch.Tensor]:
    inputs, _ = SPEC.encode([features], INDEX)
    return {name: tensor[0] for name, tensor in inputs.items()}


@pytest.mark.parametrize(
    ("features", "field", "message"),
    [
        ([], "features", "expected an object, got []"),
        ({"gendre": "f"}, "features.gendre", "reads: age, clicks, gender, genres, saves"),
        ({"gender": 1.5}, "features.gender", "expected a string, an integer or a boolean, got 1.5"),
        ({"gender": ["f"]}, "features.gender", "got ['f']"),
        ({"gender": "\ud800"}, "features.gender", "text that UTF-8 can hold, got '\\ud800'"),
        ({"gender": 10**5000}, "features.gender", "got a int"),
        ({"genres": ["a", "\ud800"]}, "features.genres[1]", "UTF-8"),
        ({"gender": NESTED}, "features.gender", "got a list"),
        ({"\ud800": 1}, "features.\\ud800", "no such field"),
        ({"age": True}, "features.age", "expected a number from -1e+100 to 1e+100, got True"),
        ({"age": "40"}, "features.age", "got '40'"),
        ({"age": math.nan}, "features.age", "got nan"),
        ({"age": -math.inf}, "features.age", "got -inf"),
        ({"age": 10**400}, "features.age", "expected a number from"),
        ({"genres": "a"}, "features.genres", "expected a list, got 'a'"),
        ({"genres": ["a", None]}, "features.genres[1]", "got null"),
        ({"clicks": {"ad_id": 1}}, "features.clicks", "expected a list"),
        ({"clicks": [3]}, "features.clicks[0]", "expected an object {ad_id, action?, at?}, got 3"),
        ({"clicks": [{"action": "buy"}]}, "features.clicks[0].ad_id", "got null"),
        ({"clicks": [{"ad_id": True}]}, "features.clicks[0].ad_id", "got True"),
        ({"clicks": [{"ad_id": 1, "item": 2}]}, "features.clicks[0].item", "only ad_id, action"),
        ({"clicks": [{"ad_id": 1, "action": 0.5}]}, "features.clicks[0].action", "got 0.5"),
        ({"clicks": [{"ad_id": 1, "at": "2024-01-01T00:00:00"}]}, "features.clicks[0].at", "zone"),
        ({"clicks": [{"ad_id": 1, "at": "soon"}]}, "features.clicks[0].at", "ISO time with a zone"),
        ({"clicks": [{"ad_id": 1, "at": False}]}, "features.clicks[0].at", "got False"),
        ({"clicks": [{"ad_id": 1, "at": 1.7e12}]}, "features.clicks[0].at", "seconds if a number"),
        ({"clicks": [{"ad_id": 1, "at": "9999-12-31T00:00Z"}]}, "features.clicks[0].at", "5138"),
        ({"clicks": [{"ad_id": 1, "at": 5}, {"ad_id": 2}, {"ad_id": 3, "at": 4}]},
         "features.clicks[2].at", "oldest first"),
    ],
)  # fmt: skip
def test_a_wrong_value_is_an_error_that_names_it(features, field, message):
    with pytest.raises(RequestError) as caught:
        SPEC.check(features)
    assert caught.value.field == field
    assert message in caught.value.message
    with pytest.raises(RequestError):
        SPEC.encode([{}, features], INDEX)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["ad_id", "action", "at", "z"]), inner, max_size=3)
    ),
    max_leaves=6,
)


@given(st.dictionaries(st.sampled_from([field.name for field in SPEC.fields]), JSON))
def test_any_json_is_encoded_or_refused_by_name(features):
    refused = "features."
    try:
        SPEC.encode([features], INDEX)
    except RequestError as error:
        refused = error.field
    assert refused.startswith("features.")


def test_missing_unknown_and_known_values_have_their_rows():
    known = encode_one(gender="m", genres=["b", "z"], age=50)
    assert known["gender"] == FIRST_VALUE + 1
    assert known["genres"].tolist() == [FIRST_VALUE + 1, UNKNOWN, PADDING]
    assert known["age"] == 1.0
    for absent in (encode_one(), encode_one(gender=None, genres=[], age=None, clicks=[])):
        assert absent["gender"] == MISSING
        assert absent["genres"].tolist() == [MISSING, PADDING, PADDING]
        assert absent["age"].isnan()
        assert not absent["clicks.valid"].any()
    assert encode_one(gender="x")["gender"] == UNKNOWN


def test_integers_and_booleans_stand_for_their_json_spelling():
    spec = FeatureSpec.from_dict(
        {"fields": [{"name": "g", "kind": "categorical", "values": [True, 7]}]}
    )
    assert spec.to_dict()["fields"][0]["values"] == ("true", "7")
    inputs, _ = spec.encode([{"g": v} for v in (True, "true", 7, "7", False)], INDEX)
    assert inputs["g"].tolist() == [FIRST_VALUE, FIRST_VALUE, FIRST_VALUE + 1, FIRST_VALUE + 1, 2]


def test_a_sequence_keeps_its_newest_known_items_at_the_end():
    events = [{"ad_id": ad} for ad in (1, 2, 3, "1", 4, 5, 6, -1, 7, 8, 9)]
    inputs, unknown = SPEC.encode([{"clicks": events}], INDEX)
    assert unknown == [2]  # the string "1" and -1 are no ads of this catalogue
    expected = INDEX.sids[INDEX.ad_sid[INDEX.find_ads([4, 5, 6, 7, 8, 9])]]
    assert inputs["clicks.tokens"][0].tolist() == expected.tolist()
    short, _ = SPEC.encode([{"clicks": events[:2]}], INDEX)
    assert short["clicks.valid"][0].tolist() == [False] * 4 + [True] * 2
    assert (short["clicks.tokens"][0, :4] == 0).all()
    assert short["clicks.actions"][0].tolist() == [PADDING] * 4 + [MISSING] * 2


def test_time_gaps_are_counted_from_the_newest_event_in_powers_of_two():
    times = [None, 0, "1970-01-01T01:00:00+01:00", 1.0, 4, 7]
    clicks = [{"ad_id": 1} if at is None else {"ad_id": 1, "at": at} for at in times]
    gaps = encode_one(clicks=clicks)["clicks.gaps"]
    assert gaps.tolist() == [MISSING, *(FIRST_VALUE + b for b in (3, 3, 2, 2, 0))]
    widest = encode_one(clicks=[{"ad_id": 1, "at": -1e11}, {"ad_id": 1, "at": 1e11}])
    assert widest["clicks.gaps"][-2:].tolist() == [NUM_GAP_ROWS - 1, FIRST_VALUE]


@given(st.integers(0, 2**32 - 1))
def test_shapes_depend_on_the_declaration_alone_and_rows_not_on_their_neighbours(seed):
    rng = np.random.default_rng(seed)
    rows = [random_features(rng) for _ in range(5)]
    inputs, unknown = SPEC.encode(rows, INDEX)
    empty, _ = SPEC.encode([{}] * 5, INDEX)
    assert {n: (t.shape, t.dtype) for n, t in inputs.items()} == {
        n: (t.shape, t.dtype) for n, t in empty.items()
    }
    for i, row in enumerate(rows):
        alone, own_unknown = SPEC.encode([row], INDEX)
        assert own_unknown == [unknown[i]]
        for name in inputs:
            assert torch.equal(alone[name][0].nan_to_num(9), inputs[name][i].nan_to_num(9))


@given(st.integers(0, 2**32 - 1))
def test_a_cut_of_the_table_is_what_a_request_with_the_shorter_history_gives(seed):
    rng = np.random.default_rng(seed)
    row = {"clicks": [{"ad_id": int(a), "at": i} for i, a in enumerate(rng.integers(0, 70, 12))]}
    table = FeatureTable.build(SPEC, [{}, row], INDEX)
    column = table.events["clicks"]
    known = [event for event in row["clicks"] if event["ad_id"] < 60]
    for length in range(len(known) + 1):
        cut = table.batch([1], {"clicks": column.offsets[[1]] + length})
        request, _ = SPEC.encode([{"clicks": known[:length]}], INDEX)
        assert all(torch.equal(cut[n].nan_to_num(9), request[n].nan_to_num(9)) for n in request)


def test_fitting_fills_what_the_declaration_leaves_open():
    spec = FeatureSpec.from_dict(
        {"fields": [
            {"name": "job", "kind": "categorical"}, {"name": "age", "kind": "numeric"},
            {"name": "tags", "kind": "bag"}, {"name": "clicks", "kind": "sequence"},
            {"name": "never", "kind": "numeric"},
        ]}
    )  # fmt: skip
    fitted = spec.fit(
        [
            {"job": "b", "age": 10, "tags": [2, "x"], "clicks": [{"ad_id": 1, "action": "buy"}]},
            {"job": "a", "age": 30, "tags": None, "clicks": [{"ad_id": 1}]},
            {"age": None},
        ]
    )
    job, age, tags, clicks, never = fitted.to_dict()["fields"]
    assert job["values"] == ("a", "b")
    assert (age["mean"], age["std"]) == (20.0, 10.0)
    assert tags["values"] == ("2", "x")
    assert clicks["actions"] == ("buy",)
    assert (never["mean"], never["std"]) == (0.0, 1.0)
    assert FeatureSpec.from_dict(fitted.to_dict()) == fitted
    assert fitted.fit([{"job": "zzz", "age": 99}]) == fitted
    with pytest.raises(RequestError, match=r"features\.job"):
        spec.fit([{"job": 0.5}])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("fields: [", "not YAML"),
        ("[]", "expected one key, `fields`"),
        ("fields: []", "one or more"),
        ("fields: {}", "must be a list"),
        ("fields: [7]", "fields[0] must be {name, kind"),
        ("fields: [{name: a.b, kind: numeric}]", "a name is letters, digits, - and _, got 'a.b'"),
        ("fields: [{name: a, kind: text}]", "one of categorical, numeric, bag, sequence"),
        ("fields: [{name: a, kind: [x]}]", "one of categorical, numeric, bag, sequence, got ['x']"),
        ("fields: [{name: a, kind: {x: 1}}]", "got {'x': 1}"),
        ("fields: 2024-13-45", "not YAML"),
        ("fields: " + "9" * 5000, "not YAML"),
        ("fields: " + "[" * 5000, "not YAML"),
        ("fields: [{name: a, kind: bag, max_length: 10001}]", "at most 10000, got 10001"),
        ("fields: [{name: a, kind: bag, max_length: 0x1" + "0" * 5000 + "}]", "got a int"),
        ("fields: [{name: a, kind: categorical, values: ['\\ud800']}]".replace("'", '"'), "UTF-8"),
        ("fields: [{name: a, kind: numeric, max: 3}]", "a numeric field has no option 'max'"),
        ("fields: [{name: a, kind: numeric, mean: 3}]", "given together"),
        ("fields: [{name: a, kind: numeric, mean: 3, std: 0}]", "std > 0"),
        ("fields: [{name: a, kind: bag, max_length: 0}]", "`max_length` must be a positive"),
        ("fields: [{name: a, kind: sequence, max_length: true}]", "got True"),
        ("fields: [{name: a, kind: categorical, values: b}]", "`values` must be a list"),
        ("fields: [{name: a, kind: categorical, values: [1.5]}]", "`values`: expected a string"),
        ("fields: [{name: a, kind: categorical, values: [1, '1']}]", "a value twice"),
        ("fields: [{name: a, kind: numeric}, {name: a, kind: bag}]", "two fields are called 'a'"),
    ],
)
def test_a_wrong_declaration_is_an_error(tmp_path, text, message):
    path = tmp_path / "features.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        FeatureSpec.load(path)
    assert message in str(caught.value)
    assert str(path) in str(caught.value)


def test_a_declaration_loads_from_yaml(tmp_path):
    path = tmp_path / "features.yaml"
    path.write_text("\ufefffields:\n- {name: clicks, kind: sequence, max_length: 4}\n")
    assert FeatureSpec.load(path).sequences[0].max_length == 4
    assert FeatureSpec.from_dict(FIELDS) == SPEC
    with pytest.raises(ConfigError, match="nowhere"):
        FeatureSpec.load(tmp_path / "nowhere.yaml")
