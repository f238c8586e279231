"""What does it bring to let beams be queries (GRACE, Table 4)?

All beams of a request attend to its context of T tokens, once in the layout of equation 10 (keys
and values materialised per beam, one query each: `before`), once in that of equation 12 (`after`),
through every backend. The copy of keys and values is not timed, as it is not in the paper. Each
backend must agree with the float32 reference before it is timed; one that cannot run these sizes
is left out and named.
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from benchmarks import record
from benchmarks.kernels import timing
from grace.kernels.cross_attention import BACKENDS, cross_attention

PAPER_BEAMS = 1024
PAPER = {"value": 0.097, "source": "GRACE, 8: from 6.9/9.6 ms to 0.097-0.101"}
TOLERANCE = 2e-2  # of bfloat16 sums
SETS = 3


def main(arguments: Sequence[str] | None = None) -> None:
    """Check that all agree, time them, show the rows."""
    parser = timing.parser(__doc__)
    parser.add_argument("--beams", type=int, nargs="+", default=[512, PAPER_BEAMS])
    parser.add_argument("--positions", type=int, default=128)
    options = parser.parse_args(arguments)
    rows = [row for beams in options.beams for row in measure_beams(beams, options)]
    after = [
        row
        for row in rows
        if row["case"] == f"M={PAPER_BEAMS}"
        and row["variant"].startswith("after")
        and row["metric"] == "latency"
    ]
    if after:
        best = min(after, key=lambda row: row["value"])
        rows.append(best | {"case": "paper", "variant": "best", "reference": PAPER})
    timing.finish("cross_attention", rows, options)


def measure_beams(beams: int, options: argparse.Namespace) -> Iterator[dict]:
    """Rows of one number of beams."""
    sets = [random_inputs(beams, options, seed) for seed in range(SETS)]
    exact = cross_attention(*(x.float() for x in sets[0]), backend="reference")
    case, counts = f"M={beams}", {"batch": options.batch, "positions": options.positions}
    on_gpu = options.device == "cuda"
    backends = [b for b in BACKENDS if (b != "reference") == on_gpu]
    size = sets[0][0].element_size()
    moved = size * (2 * sets[0][0].numel() + sets[0][1].numel() + sets[0][2].numel())
    for backend in backends:
        calls = [functools.partial(cross_attention, *s, backend=backend) for s in sets]
        if agrees(calls[0], exact, f"{case}, after, {backend}"):
            stats = timing.measure(calls, options.replays, options.device)
            variant = f"after, {backend}"
            yield record.row(case, variant, "latency", "ms", **stats, counts=counts)
            yield from timing.bandwidth_rows(case, variant, stats["value"], moved, options.device)
    key, value = (x.repeat_interleave(beams, 0) for x in sets[0][1:])
    inputs = (sets[0][0].flatten(0, 1)[:, None], key, value)
    for backend in backends:
        if backend in ("auto", "triton"):
            continue  # the paper's layout went through a library
        call = functools.partial(cross_attention, *inputs, backend=backend)
        if agrees(call, exact.flatten(0, 1)[:, None], f"{case}, before, {backend}"):
            stats = timing.measure([call], max(options.replays // 10, 3), options.device, rounds=1)
            yield record.row(case, f"before, {backend}", "latency", "ms", **stats, counts=counts)


def agrees(call: timing.Call, exact: Tensor, what: str) -> bool:
    """Whether a backend runs here; an answer that differs from the reference raises."""
    try:
        got = call()
        if got.is_cuda:
            torch.cuda.synchronize()
    except RuntimeError as error:
        print(f"{what}: not run, {str(error).splitlines()[0]}")
        return False
    torch.testing.assert_close(got.float(), exact, rtol=TOLERANCE, atol=TOLERANCE)
    return True


def random_inputs(beams: int, options: argparse.Namespace, seed: int) -> tuple[Tensor, ...]:
    """Query `[B, M, H, D]`, key and value `[B, Hkv, T, D]`, bfloat16."""
    draw = torch.Generator(options.device).manual_seed(seed)
    query = (options.batch, beams, options.heads, options.head_dim)
    context = (options.batch, options.kv_heads, options.positions, options.head_dim)
    return tuple(
        torch.randn(shape, generator=draw, device=options.device, dtype=torch.bfloat16)
        for shape in (query, context, context)
    )


if __name__ == "__main__":
    main()
