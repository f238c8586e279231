"""What does a server's interpreter spend on requests before the model gets them?

    python -m benchmarks.input_stage --demo runs/demo

Reading a batch of 16 requests: targeting looked up, features checked and turned into tensors; and
parsing one body. Variants: `native`, what the server does; `python`, the code that defines what is
right and reads whatever native code leaves to it. Both give the same, which is asserted before
anything is timed. Time is the CPU's in the calling thread, interpreter lock held or not; every
batch is another one, so that nothing is warm that a server would not find warm.

Case `paper`: requests of 64 places and as many events as `--events` says, on a catalogue of
`--scale` times 4·10^7 ads. Case `demo`: what `grace demo` made.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import torch

from benchmarks import record
from benchmarks.decode.shape import small_shape
from benchmarks.serving.world import World, demo_world, paper_world
from grace.index import Index
from grace.model import FeatureSpec, load_model
from grace.model.feature_reader import FeatureReader
from grace.retrieve.request import Request, parse_request, read_requests
from grace.serve.limits import parse_json, parse_strictly

BATCH = 16
MAX_DEPTH = 16


def main(arguments: Sequence[str] | None = None) -> list[dict]:
    """Check, time, show and save."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--demo", type=Path, help="of `grace demo`; without it only case paper")
    parser.add_argument("--scale", type=float, default=0.025, help="of the paper's catalogue")
    parser.add_argument("--events", type=int, default=64, help="of a history, case paper")
    parser.add_argument("--batches", type=int, default=64)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--small", action="store_true", help="tiny sizes, nothing saved")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    if options.small:
        options.scale, options.batches = 1e-4, 2
    shape = small_shape("dynamic")  # of a model that nobody runs here
    worlds = {"paper": paper_world(options.scale, shape, options.events, options.seed, "cpu")}
    if options.demo is not None:
        worlds["demo"] = demo_world(options.demo)
    rows = [
        row
        for case, world in worlds.items()
        for row in measure(case, world, options.batches, 1 if options.small else 5)
    ]
    record.show("input_stage", rows)
    if not options.small:
        print(record.write("input_stage", rows, machine="cpu"))
    return rows


class PythonPath:
    """Features read one request after the other, then all put into tensors."""

    def __init__(self, spec: FeatureSpec, index: Index):
        self._spec, self._index, self.read = spec, index, spec.parse

    def tensors(self, parsed: Sequence[tuple]) -> dict[str, torch.Tensor]:
        """Return the encoder's inputs."""
        return self._spec.encode_parsed(parsed, self._index)[0]


def measure(case: str, world: World, num_batches: int, repeats: int) -> Iterator[dict]:
    """Rows of one case."""
    index = Index.open(world.index) if isinstance(world.index, str) else world.index
    model = load_model(world.model) if isinstance(world.model, str) else world.model
    reader, python = FeatureReader(model.features, index), PythonPath(model.features, index)
    bodies = [json.dumps(request).encode() for request in world.requests]
    # As from the wire: no two requests share an object that they would not share in a server.
    requests = [parse_json(body, MAX_DEPTH) for body in bodies]
    batches = [
        [requests[(number * BATCH + i) % len(requests)] for i in range(BATCH)]
        for number in range(num_batches)
    ]

    def native_targeting(batch: list[dict]) -> list:
        attributes = [request["attributes"] for request in batch]
        return index.compile_plain(attributes, [request.get("at") for request in batch])

    def python_targeting(batch: list[dict]) -> list:
        return [index.compile(request["attributes"], request.get("at")) for request in batch]

    def native_features(batch: list[dict]) -> dict[str, torch.Tensor]:
        return reader.gather(reader.read_plain([r["features"] for r in batch])).tensors

    def python_features(batch: list[dict]) -> dict[str, torch.Tensor]:
        return python.tensors([python.read(request["features"]) for request in batch])

    def native_batch(batch: list[dict]) -> tuple[list[Request], dict[str, torch.Tensor]]:
        read = read_requests(batch, index, reader)
        return read, reader.gather([request.features for request in read]).tensors

    def python_batch(batch: list[dict]) -> tuple[list[Request], dict[str, torch.Tensor]]:
        read = [parse_request(raw, index, python) for raw in batch]
        return read, python.tensors([request.features for request in read])

    for batch in batches[:4]:
        check_same(native_batch(batch), python_batch(batch))
    assert all(parse_strictly(b, MAX_DEPTH) == r for b, r in zip(bodies, requests, strict=True))
    parts: dict[str, tuple[Sequence, Callable, Callable]] = {
        "body": (
            bodies,
            lambda b: parse_json(b, MAX_DEPTH),
            lambda b: parse_strictly(b, MAX_DEPTH),
        ),
        "targeting": (batches, native_targeting, python_targeting),
        "features": (batches, native_features, python_features),
        "input stage": (batches, native_batch, python_batch),
    }
    sizes = {"body_bytes": int(np.median([len(body) for body in bodies])), "batch": BATCH}
    for metric, (samples, native, pure) in parts.items():
        for variant, call in (("native", native), ("python", pure)):
            times = record.quantiles(cpu_times_ms(call, samples, repeats))
            yield record.row(case, variant, metric, "ms", **times, counts=world.counts | sizes)


def check_same(native: tuple, python: tuple) -> None:
    """Refuse to time two things that are not the same."""
    for one, other in zip(native[0], python[0], strict=True):
        assert one.id == other.id
        assert one.targeting.targeting.values == other.targeting.targeting.values
        for a, b in zip(one.targeting.value_ids, other.targeting.value_ids, strict=True):
            assert np.array_equal(a, b)
    for name, tensor in python[1].items():
        assert np.array_equal(native[1][name].numpy(), tensor.numpy(), equal_nan=True), name


def cpu_times_ms(call: Callable, samples: Sequence, repeats: int) -> list[float]:
    """Return CPU time of every call, after a round that does not count."""
    times_ms = []
    for repeat in range(repeats + 1):
        for sample in samples:
            start = time.thread_time_ns()
            call(sample)
            if repeat:
                times_ms.append((time.thread_time_ns() - start) / 1e6)
    return times_ms


if __name__ == "__main__":
    main()
