"""Tensors of the Open Inference Protocol: bytes and lists to values and back, all of it checked.

Nothing is allocated for a size that a client claims: shapes are compared with what came.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from grace.catalog.values import describe
from grace.errors import RequestError

# Little-endian, as both transports send them. FP16 and BF16 are no input and no output of ours.
DTYPES = {
    "BOOL": np.dtype(bool),
    "INT8": np.dtype("<i1"),
    "INT16": np.dtype("<i2"),
    "INT32": np.dtype("<i4"),
    "INT64": np.dtype("<i8"),
    "UINT8": np.dtype("<u1"),
    "UINT16": np.dtype("<u2"),
    "UINT32": np.dtype("<u4"),
    "UINT64": np.dtype("<u8"),
    "FP32": np.dtype("<f4"),
    "FP64": np.dtype("<f8"),
}
MAX_RANK = 8
MAX_DIMENSION = 2**31 - 1
_LENGTH = struct.Struct("<I")


@dataclass(frozen=True)
class Tensor:
    """A named tensor.

    Attributes:
        name: as the client or the model calls it.
        datatype: `BYTES` or a key of `DTYPES`.
        shape: every dimension at least 0.
        values: the elements, row by row: a list of bytes for `BYTES`, else an array `[elements]`.
    """

    name: str
    datatype: str
    shape: tuple[int, ...]
    values: list[bytes] | np.ndarray


def wrong_input(name: str, message: str) -> RequestError:
    """Return what is wrong with an input tensor, to be raised."""
    return RequestError(f"inputs.{name}", message)


def refuse_shared_memory(where: str, parameters: Iterable[str]) -> None:
    """Refuse a tensor, or a call, whose parameters point to memory or files of this machine.

    Raises:
        RequestError: naming it.
    """
    for key in parameters:
        if key.startswith("shared_memory"):
            raise RequestError(f"{where}parameters.{key}", "shared memory is not supported")


def check_shape(name: str, shape: object) -> int:
    """Return how many elements a shape has.

    Raises:
        RequestError: if it is no list of at most 8 integers from 0 to 2^31 - 1.
    """
    if not isinstance(shape, Sequence) or isinstance(shape, str | bytes):
        raise wrong_input(name, f"shape must be a list, got {describe(shape)}")
    if len(shape) > MAX_RANK:
        raise wrong_input(name, f"shape has {len(shape)} dimensions, at most {MAX_RANK}")
    elements = 1
    for size in shape:
        integer = isinstance(size, int) and not isinstance(size, bool)
        if not integer or not 0 <= size <= MAX_DIMENSION:
            raise wrong_input(
                name, f"dimensions must be integers from 0 to 2^31 - 1, got {describe(size)}"
            )
        elements *= size
    return elements


def decode_binary(name: str, datatype: str, shape: Sequence[int], data: bytes) -> Tensor:
    """Read a tensor from its binary form.

    Args:
        name: of the input.
        datatype: as the client names it.
        shape: as the client gives it.
        data: little-endian elements, row by row; an element of `BYTES` is its length in four
            bytes, then itself.

    Raises:
        RequestError: if the datatype is unknown, or the data is not exactly the shape's elements.
    """
    elements = check_shape(name, shape)
    if datatype == "BYTES":
        values = _split(name, data)
        _check_count(name, elements, len(values))
        return Tensor(name, datatype, tuple(shape), values)
    dtype = _dtype(name, datatype)
    if len(data) != elements * dtype.itemsize:
        raise wrong_input(
            name,
            f"{elements} elements of {datatype} take "
            f"{elements * dtype.itemsize} bytes, got {len(data)}",
        )
    if datatype == "BOOL" and data.strip(b"\0\1"):
        raise wrong_input(name, "bytes of BOOL must be 0 or 1")
    return Tensor(name, datatype, tuple(shape), np.frombuffer(data, dtype))


def decode_values(name: str, datatype: str, shape: Sequence[int], values: Iterable) -> Tensor:
    """Read a tensor from a list of its elements, nested or flat, as JSON or protobuf hold them.

    Raises:
        RequestError: if the datatype is unknown, a value is not of it, or their number is not the
            shape's.
    """
    elements = check_shape(name, shape)
    flat = list(_flatten(name, values, MAX_RANK))
    _check_count(name, elements, len(flat))
    if datatype == "BYTES":
        return Tensor(name, datatype, tuple(shape), [_to_bytes(name, value) for value in flat])
    dtype = _dtype(name, datatype)
    for value in flat:
        _check_value(name, datatype, dtype, value)
    return Tensor(name, datatype, tuple(shape), np.array(flat, dtype))


def encode_binary(tensor: Tensor) -> bytes:
    """Return a tensor's binary form, as `decode_binary` reads it."""
    if tensor.datatype != "BYTES":
        return tensor.values.astype(DTYPES[tensor.datatype], copy=False).tobytes()
    parts = []
    for value in tensor.values:
        parts += (_LENGTH.pack(len(value)), value)
    return b"".join(parts)


def encode_values(tensor: Tensor) -> list:
    """Return a tensor's elements as JSON holds them, flat; `BYTES` as text."""
    if tensor.datatype != "BYTES":
        return tensor.values.tolist()
    return [value.decode("utf-8") for value in tensor.values]


def _split(name: str, data: bytes) -> list[bytes]:
    values, start = [], 0
    while start < len(data):
        if start + _LENGTH.size > len(data):
            raise wrong_input(name, f"element {len(values)} ends inside its length")
        (length,) = _LENGTH.unpack_from(data, start)
        start += _LENGTH.size
        if length > len(data) - start:
            raise wrong_input(
                name,
                f"element {len(values)} has {length} bytes by its length, "
                f"{len(data) - start} are left",
            )
        values.append(bytes(data[start : start + length]))
        start += length
    return values


def _check_count(name: str, expected: int, got: int) -> None:
    if expected != got:
        raise wrong_input(name, f"the shape has {expected} elements, got {got}")


def _dtype(name: str, datatype: object) -> np.dtype:
    dtype = DTYPES.get(datatype) if isinstance(datatype, str) else None
    if dtype is None:
        raise wrong_input(
            name, f"datatype must be BYTES, {', '.join(DTYPES)}, got {describe(datatype)}"
        )
    return dtype


def _flatten(name: str, values: Iterable, rank: int) -> Iterable:
    for value in values:
        if not isinstance(value, list):
            yield value
        elif rank > 1:
            yield from _flatten(name, value, rank - 1)
        else:
            raise wrong_input(name, f"data is nested more than {MAX_RANK} deep")


def _to_bytes(name: str, value: object) -> bytes:
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        # An escape in JSON may spell half a character; what reads the element then refuses it.
        return value.encode("utf-8", "surrogatepass")
    raise wrong_input(name, f"elements of BYTES must be strings, got {describe(value)}")


def _check_value(name: str, datatype: str, dtype: np.dtype, value: object) -> None:
    if dtype.kind == "b":
        fits = isinstance(value, bool)
    elif dtype.kind == "f":
        fits = isinstance(value, int | float) and not isinstance(value, bool)
    else:
        limits = np.iinfo(dtype)
        fits = isinstance(value, int) and not isinstance(value, bool)
        fits = fits and limits.min <= value <= limits.max
    if not fits:
        raise wrong_input(name, f"{describe(value)} is no {datatype}")
