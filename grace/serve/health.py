"""Is the server alive, is it ready: one answer for every protocol."""

from __future__ import annotations

from grace.serve.engine import Engine


def why_not_ready(engine: Engine) -> str | None:
    """Return why no new requests should be sent here, or None if they may be.

    A version of the index that cannot be opened is no reason: the one before answers.
    """
    status = engine.status()
    if status["draining"]:
        return "the server is going down"
    if status["failed"]:
        return "the device can compute no more"
    return None
