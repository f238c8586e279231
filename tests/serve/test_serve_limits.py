"""Bodies: parsed as Python's own parser does, or refused with the reason; never anything else."""

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from grace.serve.faults import Fault
from grace.serve.limits import parse_json, shallow

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
