"""The garbage collector of a process that serves."""

from __future__ import annotations

import gc


def leave_alone_what_stays() -> None:
    """Let the garbage collector look at requests only, not at all that was loaded for them.

    A full collection walks every object and stops every thread: with torch, a model and an index in
    memory that is tens of milliseconds, in the middle of answers. What stays is found once, here,
    and never looked at again; what is new is counted in more objects than a few requests are.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 20, 20)
