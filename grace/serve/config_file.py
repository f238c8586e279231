"""Tables of values -> `ServeConfig`: every key known, of its type and in its range, or named."""

from __future__ import annotations

import difflib
import math
import tomllib
import types
from collections.abc import Mapping
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any, Union, get_args, get_origin, get_type_hints
from urllib.parse import urlsplit

from grace.catalog.values import describe
from grace.decode.plan import BeamPlan
from grace.errors import ConfigError
from grace.index import MATCHERS
from grace.index.bits import MAX_REQUESTS
from grace.model.step_decoder import PRECISIONS
from grace.serve.config import ServeConfig

BOUNDS: dict[str, tuple[float, float]] = {
    "model.num_sids": (1, 2**31 - 1),
    "model.top_k": (0, 2**31 - 1),
    "model.table_bytes": (0, 2**62),
    "batching.max_batch": (1, MAX_REQUESTS),
    "batching.max_wait_ms": (0, 10_000),
    "batching.max_admitted": (1, 1_000_000),
    "batching.timeout_ms": (1, 600_000),
    "batching.contexts": (1, 16),
    "http.port": (0, 65_535),
    "http.max_body_bytes": (1024, 2**30),
    "http.max_depth": (4, 200),
    "http.max_requests": (1, 4096),
    "http.max_connections": (1, 1_000_000),
    "http.body_timeout_s": (0.1, 3600),
    "http.drain_timeout_s": (0, 3600),
    "http.workers": (0, 64),
    "grpc.port": (0, 65_535),
    "admin.port": (0, 65_535),
    "telemetry.access_log": (0, 1),
    "telemetry.trace_share": (0, 1),
}
CHOICES: dict[str, tuple[str, ...]] = {
    "model.matching": tuple(MATCHERS),
    "model.precision": ("auto", *PRECISIONS),
    "telemetry.log_level": ("debug", "info", "warning", "error"),
}
PATHS = (
    "index.directory", "model.directory", "http.token_file", "http.tls_cert", "http.tls_key",
    "admin.token_file", "playground.people", "playground.catalog", "telemetry.timeline",
)  # fmt: skip


def load_config(path: str | None, overrides: Mapping[str, Any]) -> ServeConfig:
    """Read a file, put flags over it, and check all of it.

    Args:
        path: of a TOML file, whose relative paths start at its own folder; None reads none.
        overrides: `{"http.port": 9000}`, values that go before the file's; None leaves the file's.

    Raises:
        ConfigError: if the file is missing or no TOML, or a value is wrong, naming its key.
    """
    tables: dict[str, Any] = {} if path is None else _read(Path(path))
    for key, value in overrides.items():
        if value is not None:
            section, name = key.split(".")
            tables[section] = {**_table(section, tables.get(section, {})), name: value}
    try:
        return make_config(tables)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}" if path else str(error)) from None


def make_config(tables: Mapping[str, Any]) -> ServeConfig:
    """Make a configuration of `{"http": {"port": 8000}, ...}`.

    Raises:
        ConfigError: naming the key, what was expected and what came.
    """
    sections = get_type_hints(ServeConfig)
    _check_known("", tables, sections)
    made = {
        name: _section(name, kind, _table(name, tables.get(name, {})))
        for name, kind in sections.items()
    }
    config = ServeConfig(**made)
    if config.model.plan is not None:
        try:
            BeamPlan(config.model.plan, config.model.num_sids or config.model.plan[-1])
        except ConfigError as error:
            raise ConfigError(f"model.{error}") from None
    return config


def _read(path: Path) -> dict[str, Any]:
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: not TOML: {error}") from None
    for key in PATHS:
        section, name = key.split(".")
        table = tables.get(section)
        if isinstance(table, dict) and isinstance(table.get(name), str) and table[name]:
            table[name] = str(path.parent / table[name])
    return tables


def _table(name: str, value: object) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ConfigError(f"{name}: expected a table, [{name}], got {describe(value)}")
    return value


def _check_known(section: str, table: Mapping[str, Any], known: Mapping[str, Any]) -> None:
    for key in table:
        if key not in known:
            near = difflib.get_close_matches(key, known, 1)
            hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(known)}"
            raise ConfigError(f"{section}{key}: unknown key; {hint}")


def _section(section: str, kind: type, table: Mapping[str, Any]) -> Any:
    hints = get_type_hints(kind)
    declared = {entry.name: entry for entry in fields(kind)}
    _check_known(f"{section}.", table, declared)
    for name, entry in declared.items():
        if entry.default is MISSING and name not in table:
            raise ConfigError(f"{section}.{name}: missing; it has no default")
    values = {
        name: _value(f"{section}.{name}", hints[name], value) for name, value in table.items()
    }
    return kind(**values)


def _value(key: str, hint: Any, value: object) -> Any:
    if get_origin(hint) in (Union, types.UnionType):  # `X | None`; a file cannot spell None
        hint = next(part for part in get_args(hint) if part is not types.NoneType)
    if get_origin(hint) is tuple:
        if not isinstance(value, list | tuple) or not all(map(_is_integer, value)) or not value:
            raise ConfigError(f"{key}: expected a list of integers, got {describe(value)}")
        return tuple(value)
    if hint is str:
        return _text(key, value)
    if hint is bool:
        if not isinstance(value, bool):
            raise ConfigError(f"{key}: expected true or false, got {describe(value)}")
        return value
    least, most = BOUNDS.get(key, (-math.inf, math.inf))
    fits = _is_integer(value) or (hint is float and isinstance(value, float))
    if not fits or not least <= value <= most:
        kind = "an integer" if hint is int else "a number"
        raise ConfigError(f"{key}: expected {kind} from {least} to {most}, got {describe(value)}")
    return hint(value)


def _text(key: str, value: object) -> str:
    if not isinstance(value, str) or "\0" in value:
        raise ConfigError(f"{key}: expected a text, got {describe(value)}")
    if key in CHOICES and value not in CHOICES[key]:
        raise ConfigError(
            f"{key}: expected one of {', '.join(CHOICES[key])}, got {describe(value)}"
        )
    if key == "telemetry.otlp_endpoint" and value and not _is_http_url(value):
        raise ConfigError(
            f"{key}: expected http://HOST[:PORT][/PATH] or https, got {describe(value)}"
        )
    return value


def _is_http_url(text: str) -> bool:
    try:
        parts = urlsplit(text)
        parts.port  # noqa: B018  raises where it is no port
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and bool(parts.hostname)


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
