"""What an engine's process and its HTTP workers say to each other: frames over a socket pair.

A frame is its payload's length, its kind and the number of the call it is about, then the payload:
the length of a JSON text, that text, and bytes that it tells the lengths of. Only the two processes
hold ends of the pair, so nothing here is checked.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from enum import IntEnum
from typing import Any, NamedTuple

import orjson

_HEAD = struct.Struct("<IBQI")  # bytes after the kind and the number, these, bytes of the JSON text
_SIZE = struct.Struct("<I").size


class Kind(IntEnum):
    """What a frame says; E is the engine's process, W a worker."""

    SETUP = 0  # E to W, first of all: {"config", "workers"}
    READY = 1  # W to E: connections are taken
    STOP = 2  # E to W: take no more, answer those that are open, end
    ASK = 3  # W to E: {"client", "request_id", "timeout_ms", "sizes"}, the requests' texts
    ANSWER = 4  # E to W: {"parts"} or {"fault"}, the answers' texts
    CALL = 5  # W to E: {"scope"}, the body
    REPLY = 6  # E to W: {"status", "headers"}, the body
    CANCEL = 7  # W to E: nobody waits for this ASK or CALL any more
    REPORT = 8  # W to E: {"calls", "refusals"} that are over


class Frame(NamedTuple):
    """One frame as it came.

    Attributes:
        kind: of `Kind`.
        number: of the call, by the worker's count; 0 where it is about none.
        head: what the JSON text says.
        body: the bytes behind it.
    """

    kind: Kind
    number: int
    head: Any
    body: memoryview


def pack(kind: Kind, number: int, head: object, bodies: Sequence[bytes] = ()) -> list[bytes]:
    """Return a frame in pieces, to be sent one after the other."""
    text = orjson.dumps(head)
    size = _SIZE + len(text) + sum(map(len, bodies))
    return [_HEAD.pack(size, kind, number, len(text)) + text, *bodies]


def split(body: memoryview, sizes: Iterable[int]) -> list[memoryview]:
    """Return the texts that a body holds, by their lengths."""
    parts, at = [], 0
    for size in sizes:
        parts.append(body[at : at + size])
        at += size
    return parts


class Unpacker:
    """Frames out of pieces, wherever these were cut."""

    def __init__(self) -> None:
        self._waiting = bytearray()

    def feed(self, data: bytes | memoryview) -> list[Frame]:
        """Return the frames that are whole now."""
        self._waiting += data
        frames, at = [], 0
        waiting = bytes(self._waiting) if self._is_whole(0) else b""
        while waiting and self._is_whole(at):
            size, kind, number, text = _HEAD.unpack_from(waiting, at)
            first, end = at + _HEAD.size, at + _HEAD.size - _SIZE + size
            head = orjson.loads(memoryview(waiting)[first : first + text])
            body = memoryview(waiting)[first + text : end]
            frames.append(Frame(Kind(kind), number, head, body))
            at = end
        del self._waiting[:at]
        return frames

    def _is_whole(self, at: int) -> bool:
        if len(self._waiting) - at < _HEAD.size:
            return False
        size = _HEAD.unpack_from(self._waiting, at)[0]
        return len(self._waiting) >= at + _HEAD.size - _SIZE + size
