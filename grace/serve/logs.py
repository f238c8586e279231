"""Structured logs, a JSON object a line on standard error; nothing is set up on import."""

from __future__ import annotations

import logging
import queue
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from logging.handlers import QueueHandler, QueueListener
from typing import TextIO

import orjson

MAX_WAITING = 10_000
"""Lines that wait for a slow reader of the log; beyond it they are dropped and requests go on."""


class JsonFormatter(logging.Formatter):
    """Writes a record as `{"time", "level", "logger", "message", ...fields}`.

    `logger.info("...", extra={"fields": {...}})` adds the fields.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, without its end."""
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": _text(record.getMessage()),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["traceback"] = _text("".join(traceback.format_exception(*record.exc_info)))
        return orjson.dumps(line, default=str).decode()


class _Handler(QueueHandler):
    """Hands records over as they are: formatting is the writing thread's work."""

    def prepare(self, record: logging.LogRecord) -> logging.LogRecord:
        return record

    def enqueue(self, record: logging.LogRecord) -> None:
        try:
            self.queue.put_nowait(record)
        except queue.Full:
            return


@contextmanager
def json_logs(level: str, stream: TextIO | None = None) -> Iterator[None]:
    """Send the process's logs to a stream, written by a thread of their own, while inside.

    Args:
        level: of Grace's logs: debug, info, warning or error; of other packages' from warning on.
        stream: by default standard error.
    """
    writer = logging.StreamHandler(stream or sys.stderr)
    writer.setFormatter(JsonFormatter())
    waiting: queue.Queue[logging.LogRecord] = queue.Queue(MAX_WAITING)
    listener = QueueListener(waiting, writer)
    root, ours = logging.getLogger(), logging.getLogger("grace")
    before = root.handlers[:], root.level, ours.level
    root.handlers[:] = [_Handler(waiting)]
    root.setLevel(logging.WARNING)
    ours.setLevel(level.upper())
    listener.start()
    try:
        yield
    finally:
        listener.stop()
        root.handlers[:] = before[0]
        root.setLevel(before[1])
        ours.setLevel(before[2])


def _text(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()
