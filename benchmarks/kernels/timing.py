"""How a kernel is timed, and the ceilings of the machine that its time is held against.

On a GPU, calls are captured in one CUDA graph, so that no launch from Python stands between them,
and a replay is timed with events and divided by its calls. The calls take turns over several sets
of inputs, so that none finds its inputs in the cache. What is tuned is tuned before the capture.
"""

from __future__ import annotations

import argparse
import functools
import time
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

    def run() -> None:
        for _ in range(rounds):
            for call in calls:
                call()

    num_calls = rounds * len(calls)
    return record.quantiles([ms / num_calls for ms in replay_times(run, replays)])


def replay_times(run: Call, replays: int, stream: torch.cuda.Stream | None = None) -> list[float]:
    """Milliseconds of each replay of `run`, captured as one CUDA graph; see `event_times`."""
    return event_times(capture(run, stream).replay, replays, stream)


def capture(run: Call, stream: torch.cuda.Stream | None = None) -> torch.cuda.CUDAGraph:
    """Run what is to be captured once, as it may compile and tune, and capture it.

    Args:
        stream: where it runs; a new one by default.
    """
    stream = stream or torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        run()
    return graph


def event_times(
    run: Call,
    replays: int,
    stream: torch.cuda.Stream | None = None,
    warmup_ms: float = 5,
    every_ms: float | None = None,
) -> list[float]:
    """Milliseconds between an event before and one after each run, by the device's clock.

    The host waits for none of them, so that it stays ahead of the device; unless they come at a
    pace, when each finds an idle device, and what the host takes to launch it counts.

    Args:
        run: enqueues the work on the current stream, such as a graph's `replay`.
        replays: how often it is timed.
        stream: where it runs; a new one by default.
        warmup_ms: for how long it runs before, three times at least.
        every_ms: the pace; by default one run follows the other.
    """
    stream = stream or torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        runs, until = 0, time.perf_counter() + warmup_ms / 1e3
        while runs < 3 or time.perf_counter() < until:
            run()
            runs += 1
            stream.synchronize()
        events = [
            (torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True))
            for _ in range(replays)
        ]
        for start, end in events:
            begun = time.perf_counter()
            start.record(stream)
            run()
            end.record(stream)
            if every_ms is not None:
                stream.synchronize()
                time.sleep(max(begun + every_ms / 1e3 - time.perf_counter(), 0))
    torch.cuda.synchronize()
    return [start.elapsed_time(end) for start, end in events]


@functools.cache
def copy_bytes_per_ms(device: str) -> float:
    """Memory bandwidth of this machine: bytes read plus written over 2 GiB.

    By a kernel: in a graph `copy_` becomes a node of the copy engine, which is slower.
    """
    size = 2**31 if device == "cuda" else 2**20
    source = torch.ones(size // 8, dtype=torch.int64, device=device)
    target = torch.empty_like(source)
    run = functools.partial(torch.bitwise_not, source, out=target)
    return 2 * size / measure([run], 20, device)["value"]


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
