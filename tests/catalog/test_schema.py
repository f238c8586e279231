"""Schemas and rules: every mistake is named."""

import pytest

from grace.catalog import Attribute, RangeRule, Schema, SetRule
from grace.catalog.rules import RuleFault, parse_rule
from grace.errors import SchemaError


def test_a_schema_is_read_from_yaml(tmp_path):
    path = tmp_path / "schema.yaml"
    path.write_text(
        "attributes:\n- {name: g, kind: categorical, values: [a, 5, true]}\n"
        "- {name: p, kind: set}\n"
    )
    schema = Schema.load(path)
    assert schema.attributes == (
        Attribute("g", "categorical", ("a", "5", "true")),
        Attribute("p", "set"),
    )
    assert Schema.from_dict(schema.to_dict()) == schema


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([], "expected one key, `attributes`"),
        ({"attributes": [], "more": 1}, "expected one key"),
        ({"attributes": {"a": 1}}, "attributes: expected a list"),
        ({"attributes": ["age"]}, r"attributes\[0\]: expected {name, kind"),
        ({"attributes": [{"name": "a", "kind": "tree"}]}, r"\[0\].kind: expected one of"),
        ({"attributes": [{"name": "", "kind": "set"}]}, r"\[0\].name: expected a name"),
        ({"attributes": [{"name": "paused", "kind": "set"}]}, "'paused' is reserved"),
        ({"attributes": [{"name": "a", "kind": "set", "size": 3}]}, "unknown key 'size'"),
        ({"attributes": [{"name": "a", "kind": "set"}] * 2}, "'a' is declared twice"),
        ({"attributes": [{"name": "a", "kind": "range", "values": [1]}]}, "a range has no list"),
        ({"attributes": [{"name": "a", "kind": "set", "values": []}]}, "expected a list of values"),
        ({"attributes": [{"name": "a", "kind": "set", "values": [1, "1"]}]}, "'1' is listed twice"),
        (
            {"attributes": [{"name": "a", "kind": "set", "values": [1.5]}]},
            "expected a string or an",
        ),
        ({"attributes": [{"name": str(i), "kind": "set"} for i in range(63)]}, "at most 61"),
    ],
)
def test_a_wrong_schema_is_named(content, message):
    with pytest.raises(SchemaError, match=message):
        Schema.from_dict(content)


def test_a_missing_or_broken_file_is_named(tmp_path):
    with pytest.raises(SchemaError, match=r"none\.yaml: cannot be read"):
        Schema.load(tmp_path / "none.yaml")
    (tmp_path / "broken.yaml").write_text("attributes: [")
    with pytest.raises(SchemaError, match=r"broken\.yaml: cannot be read"):
        Schema.load(tmp_path / "broken.yaml")


SET, RANGE = Attribute("p", "set", ("a", "b", "5")), Attribute("r", "range")


@pytest.mark.parametrize(
    ("attribute", "raw", "rule"),
    [
        (SET, None, None),
        (SET, {}, None),
        (SET, {"include": None, "exclude": []}, None),
        (SET, {"include": ["b", "a", "b"]}, SetRule(("a", "b"), ())),
        (SET, {"include": [5], "exclude": ["a"]}, SetRule(("5",), ("a",))),
        (SET, {"include": ["a"], "min": None}, SetRule(("a",), ())),
        (RANGE, {"min": None, "max": None}, None),
        (RANGE, {"min": 3}, RangeRule(3.0, float("inf"))),
        (RANGE, {"min": 3, "max": 3.0}, RangeRule(3.0, 3.0)),
    ],
)
def test_rules_have_one_spelling(attribute, raw, rule):
    assert parse_rule(attribute, raw) == rule


@pytest.mark.parametrize(
    ("attribute", "raw", "part", "message"),
    [
        (SET, [], "", "expected an object"),
        (SET, {"include": []}, "include", "is empty"),
        (SET, {"include": "a"}, "include", "expected a list"),
        (SET, {"include": ["c"]}, "include", "'c' is not among the schema's values"),
        (SET, {"exclude": ["a", None]}, "exclude[1]", "expected a string or an integer, got null"),
        (SET, {"min": 3}, "min", "unknown key; a set rule has include and exclude"),
        (RANGE, {"include": [3]}, "include", "unknown key; a range rule has min and max"),
        (RANGE, {"min": 4, "max": 3}, "min", r"is above max \(4 > 3\)"),
        (RANGE, {"min": "3"}, "min", "expected a number"),
        (RANGE, {"max": True}, "max", "expected a number"),
        (RANGE, {"max": float("nan")}, "max", "expected a finite number"),
        (RANGE, {"max": 2**53 + 1}, "max", r"at most 2\^53"),
    ],
)
def test_a_wrong_rule_is_named(attribute, raw, part, message):
    with pytest.raises(RuleFault, match=message) as caught:
        parse_rule(attribute, raw)
    assert caught.value.part == part
