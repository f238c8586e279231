"""Bodies: parsed as Python's own parser does, or refused with the reason; never anything else."""

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from grace import _native
from grace.serve.faults import Fault
from grace.serve.limits import MAX_NUMBER_CHARS, parse_json, parse_strictly, shallow

DEPTH = 6
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.text()
    | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=12,
)  # fmt: skip


def encodable(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


def depth_of(value) -> int:
    inner = value.values() if isinstance(value, dict) else value
    return 1 + max(map(depth_of, inner), default=0) if isinstance(value, dict | list) else 0


@given(values, st.booleans())
def test_what_is_json_is_read_as_python_reads_it(value, ascii_only):
    text = json.dumps(value, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass")
    assert shallow(text, depth_of(value))
    if depth_of(value):
        assert not shallow(text, depth_of(value) - 1)
    if not ascii_only and not encodable(text):
        with pytest.raises(Fault, match="UTF-8"):  # a lone surrogate, not escaped
            parse_json(text, 100)
    else:
        assert parse_json(text, 100) == value


@given(st.binary(max_size=60) | st.text('[]{}":,\\ntrue019.eE- ', max_size=60).map(str.encode))
@example(b"[" * 100_000)
@example(b'{"a":' * 100_000)
@example(b"[]" * 500_000)
@example(b'"' + b'\\"' * 500_000)
@example(b'"' * 500_001)
@example(b"[" * DEPTH * 2 + b"]" * DEPTH)
@example(b"9" * 1_000_000)
@example(b"1." + b"9" * 1_000_000)
@example(b"\xef\xbb\xbf{}")
@example('{"a": 1}'.encode("utf-16"))
def test_any_bytes_are_read_or_refused(body):
    fault = None
    try:
        parse_json(body, DEPTH)
    except Fault as error:
        fault = error
    assert fault is None or (fault.status, fault.field) == (400, "body")
    assert fault is None or len(fault.message) < 200


def outcome(parse, body: bytes) -> tuple[str, str]:
    """What is read, types and signs of zeros included, or why it is refused."""
    try:
        return "read", repr(parse(body, DEPTH))
    except Fault as fault:
        return "refused", fault.message


NUMBERS = [
    "-0", "-0.0", "1e400", "1e-400", "1E+2", "18446744073709551615", "18446744073709551616",
    "-9223372036854775808", "-9223372036854775809", "9223372036854775808.0", "1e19", "01", "1.",
    "0." + "1" * (MAX_NUMBER_CHARS - 2), "0." + "1" * (MAX_NUMBER_CHARS - 1), "9" * 400, "NaN",
]  # fmt: skip
STRINGS = ['"a"', '"\\u0061"', '"\\ud800"', '"\\ud83d\\ude00"', '":\\""', '"\\\\"', '""', '"\x01"']
leaves = st.sampled_from([*NUMBERS, *STRINGS, "true", "null", "nul", "", '{"a":1,"a":2}'])


def members(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    spaces = st.sampled_from(["", " ", "\n\t"])
    member = st.builds("{}:{}{}".format, st.sampled_from(STRINGS), spaces, inner)
    return st.lists(member, max_size=4).map(lambda parts: "{" + " , ".join(parts) + "}")


written = st.recursive(
    leaves,
    lambda inner: members(inner) | st.lists(inner, max_size=3).map(lambda p: f"[{','.join(p)}]"),
    max_leaves=10,
)


@given(written.map(lambda text: text.encode("utf-8", "surrogatepass")) | st.binary(max_size=9))
@example(b"\xef\xbb\xbf{}")
@example(b'{"a": 1' + b"}" * 9)
@example(b"[" * (DEPTH + 1) + b"]" * (DEPTH + 1))
@example(b'{"a\\\\": ":", "b": [1.5, {"a": 1, "\\u0061": 2}]}')
def test_the_fast_parser_reads_as_the_strict_one(body):
    assert outcome(parse_json, body) == outcome(parse_strictly, body)


@given(values)
def test_what_programs_write_is_read_by_the_fast_parser(value):
    """Else the property above would hold without it; floats past 2^63 might be integers."""
    body = json.dumps(value, ensure_ascii=False).encode("utf-8", "replace")
    plain = json.loads(body)
    large = any(isinstance(v, float) and abs(v) >= 2**63 for v in flat(plain))
    assert _native.json_is_plain(body, plain, depth_of(plain), MAX_NUMBER_CHARS) is not large


def flat(value) -> list:
    inner = value.values() if isinstance(value, dict) else value
    return [v for i in inner for v in flat(i)] if isinstance(value, dict | list) else [value]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"a": 1, "b": {"c": 1, "c": 2}}', "the key 'c' is given twice"),
        (b'{"a": 1, "\\u0061": 2}', "the key 'a' is given twice"),
        (b"[NaN]", "expected finite numbers, got NaN"),
        (b"[-Infinity]", "expected finite numbers, got -Infinity"),
        (b"[1e400]", "that a float64 can hold, got 1e400"),
        (b"[18446744073709551616]", "at most 64 bits, got 18446744073709551616"),
        (b"[-9223372036854775809]", "at most 64 bits"),
        (b"\xff\xfe", "expected UTF-8, got byte 0xff at 0"),
        (b"[[[[[[[]]]]]]]", "nested deeper than 6"),
        (b'{"a": "[[[[[[[["', "not JSON"),
        (b'{"a": 1', "not JSON: Expecting ',' delimiter: line 1 column 8"),
        (b"", "not JSON"),
        (b"{} {}", "not JSON: Extra data"),
    ],
)
def test_the_reason_is_named(body, message):
    with pytest.raises(Fault) as caught:
        parse_json(body, DEPTH)
    assert message in caught.value.message


def test_brackets_in_strings_do_not_nest():
    body = json.dumps({"a": '[[[["[[[[', "b\\": ["\\", "[[[[["]}).encode()
    assert shallow(body, 2)
    assert not shallow(body, 1)
