"""Where the time of a replay goes: the kernels of a graph, by the part of the work."""

from __future__ import annotations

import functools
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from benchmarks import record
from benchmarks.decode.cost import Peaks, floors
from benchmarks.decode.searches import Prepared, Variant, free_memory, note, prepared, sizes
from benchmarks.decode.shape import Shape
from benchmarks.decode.world import World
from benchmarks.kernels import timing
from grace.decode.step_search import StepSearch
from grace.kernels.fp8_rows import Fp8Rows, quantize_rows
from grace.kernels.linear import linear
from grace.model.projection import Projection
from grace.model.step_decoder import StepDecoder
from grace.model.step_memory import StepState

PARTS = {
    "qkv": "qkv", "self_output": "self output", "cross_query": "cross query",
    "cross_output": "cross output", "gate_up": "gate up", "down": "down",
}  # fmt: skip
REPLAYS = 20
MARKER = "erfinv"  # part of the name of a kernel that nothing else here launches
END = "end"


class Marks:
    """Notes the order in which parts begin.

    On a GPU each mark is a tiny kernel: in the trace of a replay, the kernels between the k-th mark
    and the next belong to the k-th name. On a CPU the clock is read.
    """

    def __init__(self, device: torch.device):
        self._flag = torch.zeros(1, device=device)
        self.clear()

    def clear(self) -> None:
        """Forget what was noted."""
        self.names: list[str] = []
        self.clock_ms: list[float] = []

    def __call__(self, name: str) -> None:
        """Say that a part begins, and the one before it ends."""
        self.names.append(name)
        self.clock_ms.append(time.perf_counter() * 1e3)
        if self._flag.is_cuda:
            self._flag.erfinv_()


class MarkedProjection:
    """A projection that marks each product."""

    def __init__(self, projection: Projection, name: str, marks: Marks):
        self._projection, self._name, self._marks = projection, name, marks
        self.takes_fp8 = projection.takes_fp8

    def __call__(self, x: Tensor | Fp8Rows) -> Tensor:
        self._marks(self._name)
        return self._projection(x)

    def swiglu(self, x: Tensor | Fp8Rows) -> Tensor | Fp8Rows:
        self._marks(self._name)
        return self._projection.swiglu(x)

    def add_to(self, stream: Tensor, x: Tensor | Fp8Rows) -> tuple[Tensor, Tensor | None]:
        self._marks(self._name)
        return self._projection.add_to(stream, x)


class MarkedDecoder(StepDecoder):
    """Steps that mark their parts; `mark` begins it, once prefix tables are built."""

    marks: Marks | None = None

    def mark(self, marks: Marks) -> None:
        """Mark from now on."""
        self.marks = marks
        for layer in self.layers:
            for attribute, name in PARTS.items():
                setattr(layer, attribute, MarkedProjection(getattr(layer, attribute), name, marks))
        self.heads = [MarkedProjection(head, "head", marks) for head in self.heads]

    def step(self, *arguments: object, **named: object) -> Tensor:
        """Everything after a step's logits is selection."""
        logits = super().step(*arguments, **named)
        self._mark("select")
        return logits

    def reorder(self, state: StepState, parents: Tensor, t: int) -> None:
        self._mark("re-order")
        super().reorder(state, parents, t)

    def attend_prefix(self, i: int, qkv: Tensor, state: StepState, t: int) -> Tensor:
        self._mark("self-attention")
        return super().attend_prefix(i, qkv, state, t)

    def attend_context(self, i: int, query: Tensor, state: StepState) -> Tensor:
        self._mark("cross-attention")
        return super().attend_context(i, query, state)

    def _embed(self, *arguments: object) -> Tensor:
        self._mark("embeddings")
        return super()._embed(*arguments)

    def _look_up(self, *arguments: object) -> tuple[Tensor, Tensor]:
        self._mark("prefix tables")
        return super()._look_up(*arguments)

    def _norm(self, *arguments: object) -> tuple[Tensor | Fp8Rows, Tensor]:
        self._mark("norms")
        return super()._norm(*arguments)

    def _mark(self, name: str) -> None:
        if self.marks is not None:
            self.marks(name)


class MarkedSearch(StepSearch):
    """A search that marks what is not the decoder's."""

    def _enqueue(self, batch: int) -> None:
        if self.decoder.marks is None:
            self.decoder.mark(Marks(self.decoder.device))
        marks = self.decoder.marks
        marks.clear()
        marks("select")
        super()._enqueue(batch)
        marks(END)

    def _masks(self, nodes: Tensor, most: int) -> tuple[Tensor | None, Tensor | None]:
        if self.matcher is None:
            return super()._masks(nodes, most)
        self.decoder.marks("matching")
        answer = super()._masks(nodes, most)
        self.decoder.marks("select")
        return answer


def profile_rows(
    world: World, shape: Shape, variants: Sequence[Variant], replays: int, seed: int
) -> Iterator[dict]:
    """Rows `time` and `floor` of each part, and what the machine reaches; no matcher's own work."""
    device = world.device
    peaks = measure_peaks(device)
    yield from peak_rows(peaks)
    decoder, context = shape.decoder(seed, device), shape.context(seed, device)
    for variant in variants:
        case = f"paper profile: {variant.name}"
        note(case)
        one = prepared(world, shape, variant, decoder, context)
        latency = record.quantiles(one.times(replays, matching=False))
        counts = sizes(shape) | {"sids": world.trie.level_sizes[-1]}
        yield record.row(case, "whole loop", "time", "ms", **latency, counts=counts)
        del one
        free_memory(device)
        classes = {"steps": MarkedDecoder, "search": MarkedSearch}
        one = prepared(world, shape, variant, decoder, context, **classes)
        times, kernels = part_times(one)
        del one
        free_memory(device)
        for name, times_ms in times.items():
            yield record.row(
                case, name, "time", "ms", **record.quantiles(times_ms),
                counts={"kernels": kernels[name]},
            )  # fmt: skip
        busy = sum(np.median(times_ms) for times_ms in times.values())
        gaps = max(latency["value"] - busy, 0.0)
        yield record.row(case, "between kernels", "time", "ms", gaps)
        if not variant.tables:  # which change how much there is to do
            fp8 = variant.precision == "float8"
            least = floors(shape.config, shape.plan.widths, shape.batch, fp8, peaks)
            for name, floor_ms in least.items():
                yield record.row(case, name, "floor", "ms", floor_ms)
            yield record.row(case, "whole loop", "floor", "ms", sum(least.values()))


def part_times(one: Prepared) -> tuple[dict[str, list[float]], dict[str, int]]:
    """Milliseconds of each part in each of some replays, and its kernels in a replay."""
    one.find()
    marks = one.search.decoder.marks
    if one.device.type == "cpu":
        ends = marks.clock_ms[1:]
        pieces = zip(marks.names, marks.clock_ms, ends, strict=False)
        return totals([[(name, end - start) for name, start, end in pieces]])
    stream, graph = one.search._stream, one.search._graphs[one.shape.batch]
    with torch.cuda.stream(stream):
        for _ in range(3):
            graph.replay()
        torch.cuda.synchronize()
        activities = [torch.profiler.ProfilerActivity.CUDA]
        with torch.profiler.profile(activities=activities) as profiler:
            for _ in range(REPLAYS):
                graph.replay()
            torch.cuda.synchronize()
    return totals(by_mark(trace(profiler), marks.names))


def trace(profiler: torch.profiler.profile) -> list[tuple[str, float]]:
    """(name, milliseconds) of what ran on the device, in its order."""
    ran = [
        event
        for event in profiler.events()
        if event.device_type == torch.autograd.DeviceType.CUDA and not event.is_user_annotation
    ]
    ran.sort(key=lambda event: event.time_range.start)
    return [(event.name, event.time_range.elapsed_us() / 1e3) for event in ran]


def by_mark(
    ran: Sequence[tuple[str, float]], names: Sequence[str]
) -> list[list[tuple[str, float]]]:
    """Per replay (part, milliseconds) of each kernel; `names` are those of a replay's marks."""
    replays: list[list[tuple[str, float]]] = []
    mark = -1
    for kernel, ms in ran:
        if MARKER in kernel:
            mark += 1
            if mark % len(names) == 0:
                replays.append([])
        elif mark >= 0 and names[mark % len(names)] != END:
            replays[-1].append((names[mark % len(names)], ms))
    marks = len(replays) * len(names)
    assert mark + 1 == marks, f"{mark + 1} marks in the trace, expected {marks}"
    return replays


def totals(
    replays: Sequence[Sequence[tuple[str, float]]],
) -> tuple[dict[str, list[float]], dict[str, int]]:
    """Per part its milliseconds in each replay, and its pieces in the first."""
    names = list(dict.fromkeys(name for name, _ in replays[0]))
    sums = {name: [0.0] * len(replays) for name in names}
    pieces: dict[str, int] = defaultdict(int)
    for replay, ran in enumerate(replays):
        for name, ms in ran:
            sums[name][replay] += ms
            pieces[name] += replay == 0
    return sums, dict(pieces)


def measure_peaks(device: str) -> Peaks:
    """Measure what a large copy and large products reach."""
    size = 8192 if device == "cuda" else 64
    left, right = (torch.randn(size, size, device=device, dtype=torch.bfloat16) for _ in range(2))
    flops = 2 * size**3
    product = functools.partial(torch.mm, left, right.t())
    product8 = functools.partial(linear, quantize_rows(left), quantize_rows(right))
    times = [timing.measure([call], 20, device)["value"] for call in (product, product8)]
    return Peaks(timing.copy_bytes_per_ms(device), flops / times[0], flops / times[1])


def peak_rows(peaks: Peaks) -> list[dict]:
    """Rows of what the machine reaches."""
    case = "machine"
    return [
        record.row(case, "copy", "peak bandwidth", "bytes/s", peaks.bytes_per_ms * 1e3),
        record.row(case, "product, bfloat16", "peak", "flop/s", peaks.flops_per_ms * 1e3),
        record.row(case, "product, E4M3", "peak", "flop/s", peaks.fp8_flops_per_ms * 1e3),
    ]
