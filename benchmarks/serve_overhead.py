"""What does a server add to the model's time, on a CPU, with eight requests in flight?

An engine in this process over the demo's artefacts (`grace demo`); one thread keeps the requests in
flight: it takes an answer, writes its JSON and submits the next request. Metrics, by request:

- `latency`: from `submit` to the answer's JSON.
- `overhead`: `latency` less `compute` and `queue`: reading, features to tensors, expansion, the
  last filter, JSON, and every hand-over between threads.
- `overhead with queue`: `latency` less `compute`; most of it is other requests' compute.
- `input`, `compute`, `post`, `queue`: the stages of the request's batch.

And, in runs of their own:

- `torch`, `native`, `python`: shares of the time that all threads compute. Torch's is that of its
  operators, by its profiler; native is Grace's C++, call by call; Python is the rest.
- `busy`: that time, as a share of the wall time of all cores.

Other work on the machine is in all of these but `native`.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from itertools import cycle, islice
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks import record
from grace import _native
from grace.model import load_model
from grace.serve import Answer, Engine, EngineOptions


def main() -> None:
    """Measure all of it, write the result file."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--demo", type=Path, default=Path("runs/demo"), help="folder of grace demo")
    parser.add_argument("--concurrency", type=int, default=8)
    parser.add_argument("--requests", type=int, default=2000, help="of each run")
    parser.add_argument("--max-wait-ms", type=float, default=0.0)
    parser.add_argument("--matching", default="exact")
    parser.add_argument("--threads", type=int, default=1, help="of torch")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)

    with (options.demo / "requests.jsonl").open() as file:
        requests = [json.loads(line) for line in file]
    case = f"demo, concurrency {options.concurrency}"
    rows = list(latency_rows(options, requests, case)) + list(share_rows(options, requests, case))
    record.show("serve_overhead", rows)
    print(record.write("serve_overhead", rows, machine="cpu"))


def new_engine(options: argparse.Namespace) -> Engine:
    """The engine as a server would start it; nobody is turned away."""
    batching = EngineOptions(max_wait_ms=options.max_wait_ms, timeout_ms=1e6)
    return Engine(
        options.demo / "index", load_model(options.demo / "model"), None, batching,
        matching=options.matching,
    )  # fmt: skip


def latency_rows(
    options: argparse.Namespace, requests: Sequence[dict], case: str
) -> Iterator[dict]:
    """Rows of the first run."""
    engine = new_engine(options)
    drive(engine, requests, options.concurrency, options.requests // 10)
    began = time.perf_counter()
    done = drive(engine, requests, options.concurrency, options.requests)
    passed_s = time.perf_counter() - began
    batches = engine.counters.batches
    engine.drain()
    times_ms: dict[str, list[float]] = {}
    for latency_ms, answer in done:
        stages = answer.stages_ms
        with_queue_ms = latency_ms - stages["compute"]
        measured = {
            "latency": latency_ms,
            "overhead": with_queue_ms - stages["queue"],
            "overhead with queue": with_queue_ms,
        }
        for name, spent_ms in (measured | stages).items():
            times_ms.setdefault(name, []).append(max(spent_ms, 0.0))
    counts = {
        "threads": torch.get_num_threads(),
        "requests in a batch": round(
            sum(size * n for size, n in batches.items()) / sum(batches.values()), 2
        ),
        "ads of an answer": round(sum(len(answer.positions) for _, answer in done) / len(done)),
    }
    for name, samples in times_ms.items():
        stats = record.quantiles(samples)
        yield record.row(case, options.matching, name, "ms", **stats, counts=counts)
    yield record.row(case, options.matching, "requests", "1/s", len(done) / passed_s, n=len(done))


def drive(
    engine: Engine, requests: Sequence[dict], concurrency: int, count: int
) -> list[tuple[float, Answer]]:
    """Answer so many requests with a fixed number in flight: milliseconds and answer of each."""
    finished: queue.SimpleQueue[tuple[float, Future]] = queue.SimpleQueue()
    done: list[tuple[float, Answer]] = []
    rest = islice(cycle(requests), count)

    def submit(raw: dict) -> None:
        began = time.perf_counter()
        future = engine.submit(raw, as_text=True).future
        future.add_done_callback(lambda future: finished.put((began, future)))

    for raw in islice(rest, concurrency):
        submit(raw)
    while len(done) < count:
        began, future = finished.get()
        answer = future.result()
        answer.to_json()
        done.append(((time.perf_counter() - began) * 1e3, answer))
        for raw in islice(rest, 1):
            submit(raw)
    return done


def share_rows(options: argparse.Namespace, requests: Sequence[dict], case: str) -> Iterator[dict]:
    """Rows of the other runs: where the threads' time goes."""
    engine = new_engine(options)
    count = max(options.requests // 5, options.concurrency)

    def run() -> None:
        drive(engine, requests, options.concurrency, count)

    run()
    began, cpu_began = time.perf_counter(), time.process_time()
    run()
    passed_s, busy_s = time.perf_counter() - began, time.process_time() - cpu_began
    all_threads = torch._C._profiler._ExperimentalConfig(profile_all_threads=True)
    with profile(activities=[ProfilerActivity.CPU], experimental_config=all_threads) as profiled:
        run()
    spent_s = {"torch": sum(e.self_cpu_time_total for e in profiled.key_averages()) / 1e6}
    with native_seconds() as spent:
        run()
    spent_s["native"] = sum(spent)
    spent_s["python"] = max(busy_s - sum(spent_s.values()), 0.0)
    engine.drain()
    for kind, seconds in spent_s.items():
        counts = {"ms a request": round(seconds / count * 1e3, 3)}
        share = seconds / sum(spent_s.values())
        yield record.row(case, options.matching, kind, "rate", share, counts=counts)
    cores = len(os.sched_getaffinity(0))
    busy = min(busy_s / passed_s / cores, 1.0)
    yield record.row(case, options.matching, "busy", "rate", busy, counts={"cores": cores})


@contextmanager
def native_seconds() -> Iterator[list[float]]:
    """While this is open, the CPU time of every call into Grace's native code is noted."""
    spent: list[float] = []

    def timed(function: Callable) -> Callable:
        def call(*args, **kwargs):
            began = time.thread_time()
            try:
                return function(*args, **kwargs)
            finally:
                spent.append(time.thread_time() - began)

        return call

    places = [(_native, name, value) for name, value in vars(_native).items() if callable(value)]
    for _, _, kind in [place for place in places if isinstance(place[2], type)]:
        places += [
            (kind, name, method) for name, method in vars(kind).items()
            if callable(method) and not name.startswith("_")
        ]  # fmt: skip
    places = [place for place in places if not isinstance(place[2], type)]
    for owner, name, function in places:
        setattr(owner, name, timed(function))
    try:
        yield spent
    finally:
        for owner, name, function in places:
            setattr(owner, name, function)


if __name__ == "__main__":
    main()
