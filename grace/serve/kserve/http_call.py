"""The body of an infer call over HTTP: JSON, and binary data after it."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Any

from grace.catalog.values import describe
from grace.serve.kserve.codec import (
    InvalidInput,
    Tensor,
    decode_binary,
    decode_values,
    load_json,
)
from grace.serve.kserve.status import TooLarge

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
        InvalidInput: naming what does not follow the protocol.
    """
    end = len(body)
    if header_length is not None:
        digits = header_length.isascii() and header_length.isdigit() and len(header_length) < 19
        if not digits or int(header_length) > end:
            raise InvalidInput(
                f"header {HEADER_LENGTH} must be a number of bytes of the body, {end}, "
                f"got {describe(header_length)}"
            )
        end = int(header_length)
    call = load_json("the body", body[:end], max_depth)
    if not isinstance(call, dict):
        raise InvalidInput(f"the body must be an object, got {describe(call)}")
    for key in call:
        if key not in _KEYS:
            raise InvalidInput(f"unknown key {describe(key)}; a call has {', '.join(_KEYS)}")
    if not isinstance(call.get("id"), str | None):
        raise InvalidInput(f"id must be a string, got {describe(call['id'])}")
    if not isinstance(call.get("inputs"), list):
        raise InvalidInput(f"inputs must be a list, got {describe(call.get('inputs'))}")
    inputs = []
    for entry in call["inputs"]:
        tensor, end = _read_input(entry, body, end)
        inputs.append(tensor)
    if end != len(body):
        raise InvalidInput(f"{len(body) - end} bytes of binary data belong to no input")
    parameters = _object(call, "parameters")
    all_binary = parameters.get("binary_data_output", False)
    if not isinstance(all_binary, bool):
        raise InvalidInput(f"binary_data_output must be a boolean, got {describe(all_binary)}")
    outputs = _read_outputs(call.get("outputs"), all_binary)
    return Call(call.get("id"), parameters, inputs, outputs, all_binary)


def _read_input(entry: object, body: bytes, start: int) -> tuple[Tensor, int]:
    """Return a tensor, and where the next one's binary data starts."""
    if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
        raise InvalidInput(f"an input must be an object with a name, got {describe(entry)}")
    name, parameters = entry["name"], _object(entry, "parameters")
    for key in entry:
        if key not in _INPUT_KEYS:
            raise InvalidInput(f"input {name!r}: unknown key {describe(key)}")
    _refuse_shared_memory(name, parameters)
    size = parameters.get("binary_data_size")
    if size is None:
        if not isinstance(entry.get("data"), list):
            raise InvalidInput(f"input {name!r}: data must be a list")
        return decode_values(name, entry.get("datatype"), entry.get("shape"), entry["data"]), start
    if "data" in entry:
        raise InvalidInput(f"input {name!r} has both data and binary_data_size")
    if isinstance(size, bool) or not isinstance(size, int) or not 0 <= size <= len(body) - start:
        raise InvalidInput(
            f"input {name!r}: binary_data_size must be at most the {len(body) - start} bytes "
            f"that are left, got {describe(size)}"
        )
    data = body[start : start + size]
    return decode_binary(name, entry.get("datatype"), entry.get("shape"), data), start + size


def _read_outputs(outputs: object, all_binary: bool) -> dict[str, bool]:
    if outputs is None:
        return {}
    if not isinstance(outputs, list):
        raise InvalidInput(f"outputs must be a list, got {describe(outputs)}")
    wanted: dict[str, bool] = {}
    for entry in outputs:
        if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
            raise InvalidInput(f"an output must be an object with a name, got {describe(entry)}")
        name, own = entry["name"], _object(entry, "parameters")
        _refuse_shared_memory(name, own)
        if own.get("classification"):
            raise InvalidInput(f"output {name!r}: there are no classes to count")
        binary = own.get("binary_data", all_binary)
        if not isinstance(binary, bool):
            raise InvalidInput(f"output {name!r}: binary_data must be a boolean")
        if name in wanted:
            raise InvalidInput(f"output {name!r} is named twice")
        wanted[name] = binary
    return wanted


def _object(holder: dict, key: str) -> dict:
    value = holder.get(key)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise InvalidInput(f"{key} must be an object, got {describe(value)}")
    return value


def _refuse_shared_memory(name: str, parameters: dict) -> None:
    if any(key.startswith("shared_memory") for key in parameters):
        raise InvalidInput(f"tensor {name!r}: shared memory is not supported")


def decompress(body: bytes, most: int) -> bytes:
    """Return a gzip or zlib body in plain.

    Raises:
        InvalidInput: if it is neither, or not whole.
        TooLarge: if it is longer than `most` bytes; no more than that are made.
    """
    inflate = zlib.decompressobj(wbits=zlib.MAX_WBITS | 32)  # gzip or zlib, by its header
    try:
        plain = inflate.decompress(body, most)
    except zlib.error as error:
        raise InvalidInput(f"the body cannot be decompressed: {error}") from None
    if inflate.unconsumed_tail:
        raise TooLarge(f"the body is larger than {most} bytes when decompressed")
    if not inflate.eof or inflate.unused_data:
        raise InvalidInput("the body is not one whole compressed stream")
    return plain
