"""The file of requests, and in which order they are sent."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random

from grace.errors import DataError

ORDERS = ("cycle", "sample")


def read_bodies(path: str | os.PathLike) -> list[bytes]:
    """Return the requests of a JSON Lines file as they stand in it, empty lines left out.

    Raises:
        DataError: naming the file and the line.
    """
    path = Path(path)
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from None
    bodies = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            json.loads(line)
        except (ValueError, RecursionError) as error:
            raise DataError(f"{path}: line {number} is not JSON: {error}") from None
        bodies.append(line.strip())
    if not bodies:
        raise DataError(f"{path}: holds no request")
    return bodies


def in_order(
    bodies: Sequence[bytes], order: str, seed: str, part: int = 0, parts: int = 1
) -> Iterator[bytes]:
    """Yield requests without end.

    Args:
        bodies: at least one.
        order: `cycle` (as they stand in the file, over and over) or `sample` (at random).
        seed: of `sample`; each part needs its own.
        part: of several processes this one, which in a `cycle` sends every `parts`-th request.
        parts: processes.
    """
    if order == "sample":
        draw = Random(seed)
        while True:
            yield draw.choice(bodies)
    position = part
    while True:
        yield bodies[position % len(bodies)]
        position += parts
