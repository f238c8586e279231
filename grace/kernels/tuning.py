"""Measured choices between ways to run the same kernel, remembered in the process and on disk.

A choice is made once per operation, shape and machine: at the first call outside a CUDA graph's
capture. It goes by the time on the device (`grace.kernels.device_time`), as it counts in a graph.
So a program warms a shape up before it captures it, as it must anyway.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.metadata
import json
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from grace.files import atomic_write
from grace.kernels.capture import device_lock
from grace.kernels.device_time import device_ms

METHOD = 2
"""Of measuring: what another one chose is not used."""

_chosen: dict[tuple, Any] = {}
_pick: Callable[[Sequence[Any]], Any] | None = None


@contextlib.contextmanager
def pinned(pick: Callable[[Sequence[Any]], Any] = lambda candidates: candidates[0]) -> Iterator:
    """Inside the block let `pick` choose, on every device, and measure nothing.

    For tests and sanitizers; it holds for the whole process.
    """
    global _pick
    before, _pick = _pick, pick
    try:
        yield
    finally:
        _pick = before


def choose(
    operation: str,
    shape: tuple[int | str | bool, ...],
    candidates: Sequence[Any],
    run: Callable[[Any], object],
    device: torch.device,
) -> Any:
    """Return the candidate that runs fastest on this machine.

    Args:
        operation: name of what is tuned; change it where the candidates change their meaning.
        shape: all that the choice may depend on.
        candidates: JSON values, lists and not tuples; the first is the default. It is used on a
            CPU and, without being remembered, while a CUDA graph is captured.
        run: runs one candidate; it may be called many times, in a capture as well. One that cannot
            run here raises.
        device: of the tensors that `run` uses.

    Raises:
        RuntimeError: if no candidate can run, with the last one's error as cause.
    """
    if _pick is not None:
        return _pick(candidates)
    if device.type != "cuda" or len(candidates) == 1:
        return candidates[0]
    key = (operation, shape, device)
    if key in _chosen:
        return _chosen[key]
    if torch.cuda.is_current_stream_capturing():
        return candidates[0]
    with device_lock:  # a candidate may itself choose
        if key not in _chosen:
            path = _file(operation, shape, candidates, device)
            kept = json.loads(path.read_text())["choice"] if path.exists() else None
            if kept not in candidates:
                kept, times_ms = _fastest(operation, candidates, run, device)
                _keep(path, operation, shape, kept, times_ms)
            _chosen[key] = kept
    return _chosen[key]


def _fastest(
    operation: str,
    candidates: Sequence[Any],
    run: Callable[[Any], object],
    device: torch.device,
) -> tuple[Any, list]:
    from triton.compiler.errors import CompilationError
    from triton.runtime.errors import OutOfResources, PTXASError

    times_ms, failure = [], None
    for candidate in candidates:
        call = functools.partial(run, candidate)
        try:
            call()
            times_ms.append(device_ms(call, device))
        except (RuntimeError, OutOfResources, CompilationError, PTXASError) as error:
            failure = error
            times_ms.append(math.inf)
    best = min(times_ms)
    if best == math.inf:
        raise RuntimeError(f"{operation}: none of {list(candidates)} runs here") from failure
    finite = [[c, t] for c, t in zip(candidates, times_ms, strict=True) if t < math.inf]
    return candidates[times_ms.index(best)], finite


def _file(operation: str, shape: tuple, candidates: Sequence[Any], device: torch.device) -> Path:
    import triton

    versions = [importlib.metadata.version(name) for name in ("torch", "triton")]
    machine = [torch.cuda.get_device_name(device), METHOD, *versions]
    name = hashlib.sha256(
        json.dumps([operation, shape, list(candidates), machine]).encode()
    ).hexdigest()[:24]
    return Path(triton.knobs.cache.dir) / "grace" / f"{operation}-{name}.json"


def _keep(path: Path, operation: str, shape: tuple, choice: Any, times_ms: list) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {"operation": operation, "shape": shape, "choice": choice, "ms": times_ms}
    with atomic_write(path) as file:
        file.write(json.dumps(content, indent=1).encode())
