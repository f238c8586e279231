"""Tensors and call bodies: what they hold comes back; whatever else comes is refused."""

import json
import struct
import tracemalloc
import zlib

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grace.errors import RequestError
from grace.serve.faults import Fault
from grace.serve.kserve import infer
from grace.serve.kserve.codec import (
    DTYPES,
    Tensor,
    decode_binary,
    decode_values,
    encode_binary,
    encode_values,
)
from grace.serve.kserve.http_call import decompress, read_call

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=12,
)
SHAPES = st.lists(st.integers(-(2**65), 2**65), max_size=10) | st.lists(st.integers(0, 4)) | JSON
DATATYPES = st.sampled_from(["BYTES", *DTYPES]) | st.text(max_size=6)


@given(st.sampled_from(sorted(DTYPES)), st.integers(0, 40), st.randoms(use_true_random=False))
def test_numbers_come_back_from_both_forms(datatype, size, random):
    values = np.frombuffer(random.randbytes(size * 8)[: size * DTYPES[datatype].itemsize], "u1")
    values = (values % 2).view(DTYPES[datatype]) if datatype == "BOOL" else values.copy()
    values = np.nan_to_num(values.view(DTYPES[datatype]))
    tensor = Tensor("x", datatype, (size,), values)
    for again in (
        decode_binary("x", datatype, [size], encode_binary(tensor)),
        decode_values("x", datatype, [size], encode_values(tensor)),
    ):
        assert again.values.dtype == values.dtype
        assert again.values.tobytes() == values.tobytes() or np.array_equal(again.values, values)


@given(st.lists(st.binary(max_size=9)))
def test_bytes_come_back(values):
    tensor = Tensor("x", "BYTES", (len(values),), values)
    assert decode_binary("x", "BYTES", [len(values)], encode_binary(tensor)) == tensor


@given(DATATYPES, SHAPES, st.binary(max_size=64))
def test_any_binary_data_is_a_tensor_or_refused(datatype, shape, data):
    try:
        tensor = decode_binary("x", datatype, shape, data)
    except RequestError:
        return
    assert len(tensor.values) == np.prod(tensor.shape, dtype=object)
    assert encode_binary(tensor) == data


@given(DATATYPES, SHAPES, st.lists(JSON, max_size=6))
def test_any_list_is_a_tensor_or_refused(datatype, shape, values):
    try:
        tensor = decode_values("x", datatype, shape, values)
    except RequestError:
        return
    assert len(tensor.values) == np.prod(tensor.shape, dtype=object)


@pytest.mark.parametrize(
    ("shape", "data", "message"),
    [
        ([-1], b"", "from 0 to 2^31 - 1, got -1"),
        ([2**62, 2**62], b"", "from 0 to 2^31 - 1"),
        ([2**31 - 1] * 8, b"", "the shape has"),
        ([1] * 9, b"", "at most 8"),
        ([True], b"", "got True"),
        ([1], b"\1\0", "inside its length"),
        ([1], struct.pack("<I", 2**32 - 1) + b"ab", "4294967295 bytes by its length, 2 are left"),
        ([2], struct.pack("<I", 1) + b"a", "2 elements, got 1"),
    ],
)
def test_a_claimed_size_is_refused_and_allocates_nothing(shape, data, message):
    tracemalloc.start()
    try:
        with pytest.raises(RequestError) as caught:
            decode_binary("request", "BYTES", shape, data)
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()
    assert message in str(caught.value)


def test_a_fixed_size_tensor_must_fill_its_shape():
    with pytest.raises(RequestError, match="3 elements of INT64 take 24 bytes, got 16"):
        decode_binary("top_k", "INT64", [3], bytes(16))
    with pytest.raises(RequestError, match="0 or 1"):
        decode_binary("x", "BOOL", [1], b"\2")


def call_body(**changes):
    tensor = {"name": "request", "shape": [1], "datatype": "BYTES", "data": ['{"id": 1}']}
    return orjson.dumps({"inputs": [tensor | changes]})


@given(st.binary(max_size=40) | JSON.map(lambda value: json.dumps(value).encode("utf-8")))
def test_any_body_is_a_call_or_refused(body):
    with pytest.raises((RequestError, Fault)):
        read_call(None, body, 16)


@given(
    st.dictionaries(
        st.sampled_from(["name", "shape", "datatype", "data", "parameters", "odd"]),
        JSON.map(lambda value: json.loads(json.dumps(value), parse_constant=lambda _: None)),
    ),
    st.none() | st.text(max_size=6) | st.integers(-5, 300).map(str),
    st.binary(max_size=20),
)
def test_any_input_of_a_call_is_read_or_refused(changes, header_length, tail):
    body = json.dumps({"inputs": [{"name": "request", "shape": [1], **changes}]}).encode()
    try:
        call = read_call(header_length, body + tail, 16)
        infer.read_requests(call.inputs, call.parameters, 4, 16)
    except (RequestError, Fault):
        pass


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"data": None}, "data must be a list"),
        ({"parameters": {"binary_data_size": 3}}, "both data and binary_data_size"),
        ({"parameters": {"shared_memory_region": "/etc"}}, "shared memory is not supported"),
        ({"shape": [2]}, "2 elements, got 1"),
        ({"shape": "1"}, "shape must be a list"),
        ({"datatype": "FP16"}, "datatype must be"),
        ({"dtype": 1}, "unknown key 'dtype'"),
        ({"data": [1]}, "elements of BYTES must be strings, got 1"),
        ({"data": [[[[[[[[["x"]]]]]]]]]}, "nested more than 8 deep"),
    ],
)
def test_what_is_wrong_with_an_input_is_said(changes, message):
    with pytest.raises(RequestError, match=message):
        read_call(None, call_body(**changes), 16)


@pytest.mark.parametrize("length", ["-1", "1e3", "99999", "", "٣", "9" * 30])
def test_the_json_length_must_be_one_of_the_body(length):
    with pytest.raises(RequestError, match="inference-header-content-length"):
        read_call(length, call_body(), 16)


@pytest.mark.parametrize("size", [-1, 6, 2**62, True, "5", 1.5])
def test_binary_sizes_must_be_within_the_body(size):
    tensor = {"name": "request", "shape": [1], "datatype": "BYTES"}
    body = json.dumps({"inputs": [tensor | {"parameters": {"binary_data_size": size}}]}).encode()
    with pytest.raises(RequestError, match="at most the 5 bytes"):
        read_call(str(len(body)), body + b"\1\0\0\0x", 16)


def test_binary_data_that_no_input_claims_is_refused():
    body = call_body()
    with pytest.raises(RequestError, match="3 bytes of binary data belong to no input"):
        read_call(str(len(body)), body + b"abc", 16)


def test_text_that_utf8_cannot_hold_is_no_fault_of_ours():
    """JSON may spell half a character; a request made of it fails, and so does a name."""
    call = read_call(None, b'{"id": "\\udc80", "inputs": []}', 16)
    assert call.id == "\udc80"
    body = call_body().replace(b'"{', b'"\\ud800{').replace(b'"request"', b'"\\ud800"')
    (tensor,) = read_call(None, body, 16).inputs
    with pytest.raises(RequestError) as caught:
        infer.read_requests([tensor], {}, 4, 16)
    str(caught.value).encode()
    (row,) = infer.read_requests([Tensor("request", "BYTES", (1,), tensor.values)], {}, 4, 16)
    assert isinstance(row, RequestError)


def test_a_bomb_is_not_unpacked():
    bomb = zlib.compress(bytes(10_000_000))
    tracemalloc.start()
    try:
        with pytest.raises(Fault, match="in plain"):
            decompress(bomb, 10_000)
        assert tracemalloc.get_traced_memory()[1] < 200_000
    finally:
        tracemalloc.stop()
    for broken in (b"plain", bomb[:50], zlib.compress(b"{}") + b"more"):
        with pytest.raises(RequestError):
            decompress(broken, 10**8)


def test_requests_and_columns_that_disagree_are_refused():
    one = decode_values("request", "BYTES", [1], [b'{"id": 1}'])
    for inputs, message in [
        ([], "got no input"),
        ([one, one], "have the same name"),
        ([decode_values("request", "BYTES", [0], [])], r"1 to 4 requests.*got request \[0\]"),
        ([decode_values("request", "BYTES", [5], [b"{}"] * 5)], "expected 1 to 4"),
        ([decode_values("request", "BYTES", [1, 1], [b"{}"])], r"shape must be \[n\]"),
        ([decode_values("request", "INT64", [1], [1])], "datatype must be BYTES"),
        ([decode_values("user", "BYTES", [1], [b"u"])], "got 'user'"),
    ]:
        with pytest.raises(RequestError, match=message):
            infer.read_requests(inputs, {}, 4, 16)


def test_a_column_that_is_wrong_in_one_row_fails_that_row():
    columns = [
        decode_values("features", "BYTES", [2], [b"{", b"{}"]),
        decode_values("at", "BYTES", [2], [b"now", b"\xff"]),
    ]
    first, second = infer.read_requests(columns, {"top_k": 1}, 4, 16)
    assert isinstance(first, RequestError)
    assert first.field == "features"
    assert second.field == "at"
