"""How a kernel is timed, and the ceilings of the machine that its time is held against.

On a GPU, calls are captured in one CUDA graph, so that no launch from Python stands between them,
and a replay is timed with events and divided by its calls. The calls take turns over several sets
of inputs, so that none finds its inputs in the cache. What is tuned is tuned before the capture.
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Callable, Iterator, Sequence

import torch

from benchmarks import record

Call = Callable[[], object]


def parser(description: str) -> argparse.ArgumentParser:
    """Options that all kernel benchmarks share; the defaults are GRACE's shape."""
    parser = argparse.ArgumentParser(description=description.partition("\n")[0])
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--heads", type=int, default=16)
    parser.add_argument("--kv-heads", type=int, default=16)
    parser.add_argument("--head-dim", type=int, default=128)
    parser.add_argument("--replays", type=int, default=100)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--write", action="store_true", help="save the result file")
    return parser


def finish(name: str, rows: Sequence[dict], options: argparse.Namespace) -> None:
    """Print the rows and save them if asked to."""
    record.show(name, rows)
    if options.write:
        print(record.write(name, rows, None if options.device == "cuda" else "cpu"))


def measure(calls: Sequence[Call], replays: int, device: str, rounds: int = 2) -> dict[str, float]:
    """Return median, p20, p80, p99 in ms of one call, as keyword arguments of `record.row`.

    Args:
        calls: the same work on distinct sets of inputs.
        replays: how often all of them are timed.
        device: `cuda`, or `cpu` where times mean little and only the script is tried.
        rounds: how often one replay runs through `calls`.
    """
    if device == "cpu":
        return record.quantiles(record.time_calls(calls[0], 2, warmup=1))
    for call in calls:
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(rounds):
            for call in calls:
                call()
    for _ in range(5):
        graph.replay()
    events = [
        (torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True))
        for _ in range(replays)
    ]
    for start, end in events:
        start.record()
        graph.replay()
        end.record()
    torch.cuda.synchronize()
    num_calls = rounds * len(calls)
    return record.quantiles([start.elapsed_time(end) / num_calls for start, end in events])


@functools.cache
def copy_bytes_per_ms(device: str) -> float:
    """Memory bandwidth of this machine: bytes read plus written by a copy of 2 GiB."""
    size = 2**31 if device == "cuda" else 2**20
    source = torch.empty(size, dtype=torch.uint8, device=device).fill_(1)
    target = torch.empty_like(source)
    return 2 * size / measure([lambda: target.copy_(source)], 20, device)["value"]


def bandwidth_rows(
    case: str, variant: str, ms: float, num_bytes: int, device: str
) -> Iterator[dict]:
    """Rows that hold a time against the bytes that have to move.

    Args:
        ms: the measured median.
        num_bytes: what must be read or written, each byte once.
    """
    counts = {"bytes": num_bytes}
    floor_ms = num_bytes / copy_bytes_per_ms(device)
    yield record.row(case, variant, "bandwidth", "bytes/s", num_bytes / ms * 1e3, counts=counts)
    yield record.row(case, variant, "byte floor", "ms", floor_ms, counts=counts)
    yield record.row(case, variant, "time over floor", "ratio", ms / floor_ms)
