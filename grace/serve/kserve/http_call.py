"""The body of an infer call over HTTP: JSON, and binary data after it."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Any

from grace.catalog.values import describe
from grace.errors import RequestError
from grace.serve.faults import Fault
from grace.serve.kserve.codec import (
    Tensor,
    decode_binary,
    decode_values,
    refuse_shared_memory,
    wrong_input,
)
from grace.serve.limits import parse_json

HEADER_LENGTH = "inference-header-content-length"
_KEYS = ("id", "parameters", "inputs", "outputs")
_INPUT_KEYS = ("name", "shape", "datatype", "parameters", "data")


@dataclass(frozen=True)
class Call:
    """An infer call.

    Attributes:
        id: the client's, to be echoed, or None.
        parameters: of the call, unchecked.
        inputs: whose elements are what their shapes and datatypes say.
        outputs: wanted ones: name → whether as binary data; empty where none is named.
        all_binary: whether outputs that say nothing of it are wanted as binary data.
    """

    id: str | None
    parameters: dict[str, Any]
    inputs: list[Tensor]
    outputs: dict[str, bool]
    all_binary: bool


def read_call(header_length: str | None, body: bytes, max_depth: int) -> Call:
    """Read the body of an infer call.

    Args:
        header_length: the header `Inference-Header-Content-Length`: how long the JSON is where
            binary data follows it.
        body: JSON, then the inputs' binary data in their order.
        max_depth: of the JSON.

    Raises:
        RequestError: naming what does not follow the protocol.
        Fault: 400, as `parse_json` raises it.
    """
    end = len(body)
    if header_length is not None:
        digits = header_length.isascii() and header_length.isdigit() and len(header_length) < 19
        if not digits or int(header_length) > end:
            message = f"expected a number of bytes, at most the body's {end}"
            raise RequestError(HEADER_LENGTH, f"{message}, got {describe(header_length)}")
        end = int(header_length)
    call = parse_json(body[:end], max_depth)
    if not isinstance(call, dict):
        raise RequestError("body", f"expected an object, got {describe(call)}")
    for key in call:
        if key not in _KEYS:
            raise RequestError(key, f"unknown key; a call has {', '.join(_KEYS)}")
    if not isinstance(call.get("id"), str | None):
        raise RequestError("id", f"expected a string, got {describe(call['id'])}")
    if not isinstance(call.get("inputs"), list):
        raise RequestError("inputs", f"expected a list, got {describe(call.get('inputs'))}")
    inputs = []
    for entry in call["inputs"]:
        tensor, end = _read_input(entry, body, end)
        inputs.append(tensor)
    if end != len(body):
        raise RequestError("body", f"{len(body) - end} bytes of binary data belong to no input")
    parameters = _parameters("", call)
    all_binary = _boolean("", parameters, "binary_data_output", False)
    outputs = _read_outputs(call.get("outputs"), all_binary)
    return Call(call.get("id"), parameters, inputs, outputs, all_binary)


def _read_input(entry: object, body: bytes, start: int) -> tuple[Tensor, int]:
    """Return a tensor, and where the next one's binary data starts."""
    name = _name("inputs", entry)
    for key in entry:
        if key not in _INPUT_KEYS:
            raise wrong_input(name, f"unknown key {describe(key)}")
    parameters = _parameters(f"inputs.{name}.", entry)
    size = parameters.get("binary_data_size")
    if size is None:
        if not isinstance(entry.get("data"), list):
            raise wrong_input(name, "data must be a list")
        return decode_values(name, entry.get("datatype"), entry.get("shape"), entry["data"]), start
    if "data" in entry:
        raise wrong_input(name, "has both data and binary_data_size")
    left = len(body) - start
    if isinstance(size, bool) or not isinstance(size, int) or not 0 <= size <= left:
        message = f"binary_data_size must be at most the {left} bytes that are left"
        raise wrong_input(name, f"{message}, got {describe(size)}")
    data = body[start : start + size]
    return decode_binary(name, entry.get("datatype"), entry.get("shape"), data), start + size


def _read_outputs(outputs: object, all_binary: bool) -> dict[str, bool]:
    if outputs is None:
        return {}
    if not isinstance(outputs, list):
        raise RequestError("outputs", f"expected a list, got {describe(outputs)}")
    wanted: dict[str, bool] = {}
    for entry in outputs:
        name = _name("outputs", entry)
        parameters = _parameters(f"outputs.{name}.", entry)
        if parameters.get("classification"):
            raise RequestError(f"outputs.{name}", "there are no classes to count")
        if name in wanted:
            raise RequestError("outputs", f"{describe(name)} is named twice")
        wanted[name] = _boolean(f"outputs.{name}.", parameters, "binary_data", all_binary)
    return wanted


def _name(where: str, entry: object) -> str:
    if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
        raise RequestError(where, f"expected objects with a name, got {describe(entry)}")
    return entry["name"]


def _parameters(where: str, holder: dict) -> dict[str, Any]:
    parameters = holder.get("parameters")
    if parameters is None:
        return {}
    if not isinstance(parameters, dict):
        message = f"expected an object, got {describe(parameters)}"
        raise RequestError(f"{where}parameters", message)
    refuse_shared_memory(where, parameters)
    return parameters


def _boolean(where: str, parameters: dict[str, Any], key: str, default: bool) -> bool:
    value = parameters.get(key, default)
    if not isinstance(value, bool):
        message = f"expected true or false, got {describe(value)}"
        raise RequestError(f"{where}parameters.{key}", message)
    return value


def decompress(body: bytes, most: int) -> bytes:
    """Return a gzip or zlib body in plain.

    Raises:
        RequestError: if it is neither, or not whole.
        Fault: 413 if it is longer than `most` bytes; no more than that are made.
    """
    inflate = zlib.decompressobj(wbits=zlib.MAX_WBITS | 32)  # gzip or zlib, by its header
    try:
        plain = inflate.decompress(body, most)
    except zlib.error as error:
        raise RequestError("body", f"cannot be decompressed: {error}") from None
    if inflate.unconsumed_tail:
        raise Fault(413, "body", f"expected at most {most:,} bytes in plain", "too_large")
    if not inflate.eof or inflate.unused_data:
        raise RequestError("body", "is not one whole compressed stream")
    return plain
