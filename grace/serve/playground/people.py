"""Example users: the lines of a file of requests."""

from __future__ import annotations

import json
from pathlib import Path

from grace.errors import ConfigError

MOST = 1000
"""People that are read; later lines are left alone."""


class People:
    """Requests that somebody may start from.

    Args:
        path: a JSON Lines file of requests; None for nobody.

    Raises:
        ConfigError: if the file cannot be read or a line is no request.
    """

    def __init__(self, path: Path | None):
        self._lines: list[bytes] = []
        self.labels: list[str] = []
        if path is None:
            return
        try:
            with open(path, "rb") as file:
                for number, line in enumerate(file, start=1):
                    if len(self._lines) == MOST:
                        break
                    if not line.isspace():
                        self.labels.append(label(_request(path, number, line)))
                        self._lines.append(line)
        except OSError as error:
            raise ConfigError(
                f"playground.people: {path} cannot be read: {error.strerror}"
            ) from None

    def __len__(self) -> int:
        return len(self._lines)

    def request(self, number: int) -> dict:
        """Return one person's request: `attributes`, `features` and maybe `at`."""
        raw = json.loads(self._lines[number])
        return {key: raw.get(key) or {} for key in ("attributes", "features")} | (
            {"at": raw["at"]} if raw.get("at") is not None else {}
        )


def label(request: dict) -> str:
    """Return who asks, from the id and the attributes: "7: 24, male, Tucson"."""
    words = []
    for value in (request.get("attributes") or {}).values():
        if isinstance(value, (str, int, float)):
            words.append(str(value))
        elif isinstance(value, list) and value and isinstance(value[-1], str) and "/" in value[-1]:
            # A place is a path, and its last step says it best.
            words.append(value[-1].rpartition("/")[2].rpartition(":")[2])
    return f"{request.get('id')}: {', '.join(words)}" if words else str(request.get("id"))


def _request(path: Path, number: int, line: bytes) -> dict:
    try:
        raw = json.loads(line)
    except (ValueError, RecursionError):
        raw = None
    parts = [raw.get(key) for key in ("attributes", "features")] if isinstance(raw, dict) else [0]
    if not all(part is None or isinstance(part, dict) for part in parts):
        raise ConfigError(f"playground.people: {path}, line {number}: expected a request")
    return raw
