"""How an engine forms batches, checked."""

from __future__ import annotations

import math
from dataclasses import dataclass

from grace.catalog.values import describe
from grace.errors import ConfigError
from grace.index.bits import MAX_REQUESTS
from grace.retrieve.retriever import check_integer


@dataclass(frozen=True, kw_only=True)
class EngineOptions:
    """How requests become batches.

    Raises:
        ConfigError: naming the option that is out of range.

    Attributes:
        max_batch: the most requests of a batch.
        max_wait_ms: how long the first request of a batch waits for others while the device is
            idle; 0 starts at once, and what comes while the device is busy forms the next batch.
        max_admitted: the most requests in the engine, waiting or in a batch; more are refused.
        timeout_ms: the deadline of a request that names none.
        contexts: batches in flight.
    """

    max_batch: int = 16
    max_wait_ms: float = 0.0
    max_admitted: int = 256
    timeout_ms: float = 1000.0
    contexts: int = 3

    def __post_init__(self):
        check_integer("max_batch", self.max_batch, 1, MAX_REQUESTS)
        check_integer("max_admitted", self.max_admitted, 1, None)
        check_integer("contexts", self.contexts, 1, None)
        for name in ("max_wait_ms", "timeout_ms"):
            value = getattr(self, name)
            if type(value) not in (int, float) or not 0 <= value < math.inf:
                raise ConfigError(
                    f"{name} must be a number of milliseconds, at least 0, got {describe(value)}"
                )
