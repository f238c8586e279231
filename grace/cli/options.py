"""Options that several commands read the same way."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from grace.decode import DEFAULT_NUM_SIDS, BeamPlan, full_plan
from grace.errors import ConfigError

Workers = Annotated[
    int | None, typer.Option(min=1, max=1024, help="Threads; as many as cores by default.")
]

Precision = Annotated[
    str, typer.Option(help="Of the decoder: auto | float32 | bfloat16 | float8 (docs/fp8.md).")
]


def num_cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def parse_plan(widths: str | None, num_sids: int | None, num_levels: int) -> BeamPlan:
    """Return the plan of `--plan 1,256,512` and `--sids N`.

    Without `--plan` every step is as wide as the number of SIDs, where the trie allows it. Without
    `--sids` the last width is also the number of SIDs.

    Raises:
        ConfigError: if the widths are no list of integers, or make no plan.
    """
    if widths is None:
        return full_plan(num_levels, DEFAULT_NUM_SIDS if num_sids is None else num_sids)
    try:
        parsed = tuple(int(width) for width in widths.split(","))
    except ValueError:
        raise ConfigError(f"--plan: expected integers such as 1,256,512, got {widths!r}") from None
    return BeamPlan(parsed, parsed[-1] if num_sids is None else num_sids)
