"""How much does one server carry, how fast, and what is it busy with?

    python -m benchmarks.serve --case paper     # on a GPU
    python -m benchmarks.serve --case demo --demo runs/demo

The engine in this process, HTTP where `grace serve` has it (beside a GPU in workers), on loopback,
and `grace load` in other processes on other cores. Case `paper`: GRACE's model with random weights,
4·10^7 ads on 3·10^7 SIDs drawn as in `benchmarks.exact_arrays`, requests of 64 places and 64 events
(as many as the model has tokens that start from the newest), on a GPU. Case `demo`: what `grace
demo` trained, on a CPU. docs/load.md says what the metrics are.
"""

from __future__ import annotations

import argparse
import gc
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from benchmarks import record
from benchmarks.decode.shape import read_shape, small_shape
from benchmarks.serving.batches import batch_times, warm
from benchmarks.serving.busy import kernel_share
from benchmarks.serving.generator import Generator, result, split_cores
from benchmarks.serving.rows import full_rows, load_rows, passage_rows
from benchmarks.serving.server import Watch, served
from benchmarks.serving.shares import Sampler
from benchmarks.serving.world import World, demo_world, paper_world
from grace.serve import Engine, EngineOptions
from grace.serve.workers import default_count

OPEN_RATE = 1200.0
"""Requests a second that one GPU is to carry."""
TRACE_S = 2.0
"""That a trace of the GPU may take, longer than what it traces."""
BEGAN = time.perf_counter()


@dataclass(frozen=True)
class Variant:
    """How a world is served.

    Attributes:
        name: of its rows.
        matching, precision: as `Retriever` takes them.
        loaded: whether it is put under load; else only its Full latency is measured.
    """

    name: str
    matching: str
    precision: str = "auto"
    loaded: bool = True


PAPER = (
    Variant("exact", "exact"),
    Variant("exact+fp8", "exact", "float8"),
    Variant("valid", "valid", loaded=False),
    Variant("bitmask+bloom", "bitmask+bloom", loaded=False),
)
DEMO = (Variant("exact", "exact"), Variant("valid", "valid", loaded=False))


@dataclass(frozen=True)
class Plan:
    """How long, and how much.

    Attributes:
        closed: requests in flight.
        opened: requests a second.
        watched: requests in flight while threads are sampled; None for the capacity's.
        seconds, warmup: of each level.
        batches: that come alone.
        mean_ms, p99_ms: limits of the capacity.
    """

    closed: tuple[int, ...]
    opened: tuple[float, ...]
    watched: int | None
    seconds: float
    warmup: float
    batches: int
    mean_ms: float
    p99_ms: float


# Of the paper's service only the P99 is given: its mean must not be what decides.
PLANS = {
    "paper": Plan((16, 32, 48, 64, 96), (OPEN_RATE,), None, 3, 1, 100, 100, 100),
    "demo": Plan((1, 2, 4, 8, 16), (50.0,), 8, 5, 1, 50, 20, 100),
    "small": Plan((1, 3), (40.0,), 3, 0.5, 0.2, 4, 1000, 1000),
}


def main(arguments: Sequence[str] | None = None) -> list[dict]:
    """Serve, load, show and save."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--case", choices=("paper", "demo"), default="paper")
    parser.add_argument("--demo", type=Path, default=Path("runs/demo"), help="of `grace demo`")
    parser.add_argument("--scale", type=float, default=1.0, help="of the paper's catalogue")
    parser.add_argument("--variants", help="some of the case's, such as exact,exact+fp8")
    parser.add_argument("--closed", help="requests in flight, such as 16,32,64")
    parser.add_argument("--open", help="requests a second, such as 1200")
    parser.add_argument("--wait-ms", type=float, default=2.0, help="for a batch to fill")
    parser.add_argument("--contexts", type=int, default=3, help="batches in flight")
    parser.add_argument("--workers", type=int, help="for HTTP; by default as `grace serve`")
    parser.add_argument("--events", type=int, default=64, help="of a history, case paper")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--small", action="store_true", help="tiny sizes, nothing saved")
    parser.add_argument("--add", action="store_true", help="keep other variants of this commit")
    options = parser.parse_args(arguments)
    variants = {each.name: each for each in (PAPER if options.case == "paper" else DEMO)}
    names = list(variants) if options.variants is None else options.variants.split(",")
    if not set(names) <= set(variants):
        parser.error(f"--variants must be some of {', '.join(variants)}, got {options.variants}")
    if options.add:
        record.kept_rows("serve", ())  # refuses another commit's file before anything is measured

    rows: list[dict] = []
    try:
        with tempfile.TemporaryDirectory() as folder:
            measure = Measurement(options, Path(folder))
            for name in names:
                rows += measure.rows(variants[name])
    finally:  # what is measured stays, even if a later variant fails
        gc.unfreeze()
        if rows:
            record.show("serve", rows)
            if not options.small:
                kept = record.kept_rows("serve", ()) if options.add else []
                kept = [row for row in kept if row["variant"] not in names]
                machine = "cpu" if options.case == "demo" else None
                print(record.write("serve", [*kept, *rows], machine, added=options.add))
    return rows


class Measurement:
    """One case: its world, and where server and generator run."""

    def __init__(self, options: argparse.Namespace, folder: Path):
        self._options, self._case = options, options.case
        self._plan = PLANS["small" if options.small else options.case]
        on_gpu = options.case == "paper" and not options.small and torch.cuda.is_available()
        self._device = "cuda" if on_gpu else "cpu"
        self._world = self._make_world()
        note(f"{self._world.counts}")
        requests = self._world.write_requests(folder / "requests.jsonl")
        self._server_cores, cores = split_cores()
        self._workers = options.workers
        if self._workers is None:
            self._workers = default_count(self._device, len(self._server_cores))
        plan = self._plan
        self._generator = Generator(
            requests, cores, plan.seconds, plan.warmup, plan.mean_ms, plan.p99_ms
        )
        # The requests are here only to be submitted in a moment: a server would not hold them.
        gc.collect()
        gc.freeze()

    def rows(self, variant: Variant) -> Iterator[dict]:
        """Rows of one variant."""
        world, options = self._world, self._options
        batching = EngineOptions(
            max_batch=16, max_wait_ms=options.wait_ms, contexts=options.contexts
        )
        engine = Engine(
            world.index, world.model, world.plan, batching, matching=variant.matching,
            device=self._device, precision=variant.precision,
        )  # fmt: skip
        note(f"{variant.name}: ready")
        warm(engine, world.requests)
        with served(engine, self._server_cores, self._workers) as (url, watch):
            yield from self._full_rows(engine, variant)
            note(f"{variant.name}: batches alone")
            if variant.loaded:
                yield from self._load_rows(url, watch, variant)
        del engine
        gc.collect()
        if self._device == "cuda":
            torch.cuda.empty_cache()

    def _make_world(self) -> World:
        options = self._options
        if options.case == "demo":
            return demo_world(options.demo)
        if options.small:
            return paper_world(1e-4, small_shape("dynamic"), options.events, options.seed, "cpu")
        shape = read_shape("dynamic")
        return paper_world(options.scale, shape, options.events, options.seed, self._device)

    def _full_rows(self, engine: Engine, variant: Variant) -> Iterator[dict]:
        times_ms, stages = batch_times(
            engine, self._world.requests, self._plan.batches, as_text=True
        )
        counts = {**self._world.counts, "batch": engine.options.max_batch}
        yield from full_rows(self._case, variant.name, times_ms, stages, counts)

    def _load_rows(self, url: str, watch: Watch, variant: Variant) -> Iterator[dict]:
        options, plan = self._options, self._plan
        closed = [int(n) for n in options.closed.split(",")] if options.closed else plan.closed
        opened = [float(n) for n in options.open.split(",")] if options.open else plan.opened
        loaded = self._generator.measure(url, closed, opened)
        case, name, counts = self._case, variant.name, self._world.counts
        yield from load_rows(case, name, loaded, counts)
        best = loaded["capacity"]
        note(f"{name}: capacity {best}")
        in_flight = plan.watched or (best["in_flight"] if best else closed[-1])
        yield from self._watched_rows(url, watch, name, in_flight)
        note(f"{name}: watched at {in_flight} in flight")

    def _watched_rows(self, url: str, watch: Watch, name: str, in_flight: int) -> Iterator[dict]:
        """One level more, with threads sampled and passages noted: it may be a little slower."""
        case, on_gpu = self._case, self._device == "cuda"
        warmup = self._plan.warmup + (TRACE_S if on_gpu else 0.0)
        watch.clear()
        watch.on = True
        process = self._generator.start(url, [in_flight], warmup=warmup)
        while not watch.passages and process.poll() is None:
            time.sleep(0.01)
        opens = time.monotonic() + warmup
        time.sleep(self._plan.warmup)
        busy = kernel_share() if on_gpu else None  # before the window: tracing takes time
        time.sleep(max(opens - time.monotonic(), 0))
        watch.calls_ms.clear()
        with Sampler(on_gpu) as sampler:
            time.sleep(self._plan.seconds / 2)
        (level,) = result(process)["levels"]
        watch.on = False
        passages = [each for each in watch.passages if each.began >= opens]
        counts = {"in_flight": in_flight, "http_workers": self._workers}
        calls_ms, mean_ms = watch.calls_ms, level["mean_ms"]
        yield from passage_rows(case, name, passages, calls_ms, mean_ms, counts)
        for kind, share in sampler.shares().items():
            yield record.row(case, name, f"wall time in {kind}", "rate", share, counts=counts)
        yield record.row(case, name, "cores in use", "ratio", sampler.cores, counts=counts)
        if busy is not None:
            yield record.row(case, name, "compute busy", "rate", busy, counts=counts)


def note(text: str) -> None:
    """Say how far it is."""
    print(f"{time.perf_counter() - BEGAN:6.1f} s  {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
