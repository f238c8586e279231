"""What does it cost to quantise rows to FP8, alone and fused into what computes them?

Over the rows of decoder steps at the paper's width. `apart` is our norm with a bfloat16 result and
then `quantize_rows`: what fusing saves. `torch` is the reference, `torch.compile` that compiled.
Each must agree with the reference on float32 inputs to a step of E4M3 before it is timed.
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from benchmarks import record
from benchmarks.kernels import timing
from benchmarks.kernels.bench_elementwise import EPS, SETS, random
from grace.kernels.fp8_rows import (
    Fp8Rows,
    add_rms_norm_fp8,
    quantize_rows,
    rms_norm_fp8,
)
from grace.kernels.fp8_rows import reference as plain
from grace.kernels.rms_norm import add_rms_norm, rms_norm


def main(arguments: Sequence[str] | None = None) -> None:
    """Check that all agree, time them, show the rows."""
    parser = timing.parser(__doc__)
    parser.add_argument("--beams", type=int, nargs="+", default=[1, 512, 1024])
    parser.add_argument("--model-dim", type=int, default=1024)
    parser.add_argument("--ffn-dim", type=int, default=4864)
    options = parser.parse_args(arguments)
    rows = [
        row
        for beams in options.beams
        for name, shapes in kernels(options.batch * beams, options).items()
        for row in measure_kernel(f"{name}, {options.batch * beams} rows", name, shapes, options)
    ]
    timing.finish("fp8_rows", rows, options)


def kernels(rows: int, options: argparse.Namespace) -> dict[str, list[tuple[int, ...]]]:
    """Shapes of each kernel's tensors."""
    narrow, wide = (rows, options.model_dim), (rows, options.ffn_dim)
    return {
        "quantize_rows": [wide],
        "rms_norm_fp8": [narrow, narrow[1:]],
        "add_rms_norm_fp8": [narrow, narrow, narrow[1:]],
    }


def measure_kernel(
    case: str, name: str, shapes: list[tuple[int, ...]], options: argparse.Namespace
) -> Iterator[dict]:
    """Rows of one kernel."""
    sets = [random(shapes, seed, options) for seed in range(SETS)]
    variants = VARIANTS[name]
    if options.device == "cuda":
        variants = variants | {"torch.compile": torch.compile(variants["torch"])}
    exact = variants["torch"](*(x.float() for x in sets[0]))
    moved = sum(x.nbytes for x in sets[0]) + exact[0].nbytes + exact[1].nbytes
    moved += sum(x.numel() * 2 for x in exact[2:])  # a sum in bfloat16
    for variant, run in variants.items():
        values, scales, *_ = run(*sets[0])
        got, wanted = (Fp8Rows(*pair).float() for pair in ((values, scales), exact[:2]))
        # A last bit, or `apart`'s rounding to bfloat16, may lead to the other neighbour: a step is
        # at most 1/8 of a value, or 2^-9 of the scale.
        torch.testing.assert_close(got, wanted, rtol=1 / 7, atol=float(exact[1].max()) / 256)
        calls = [functools.partial(run, *s) for s in sets]
        stats = timing.measure(calls, options.replays, options.device)
        yield record.row(case, variant, "latency", "ms", **stats)
        yield from timing.bandwidth_rows(case, variant, stats["value"], moved, options.device)


def pair(rows: Fp8Rows) -> tuple[Tensor, Tensor]:
    return rows.values, rows.scales


def ours_added(x: Tensor, residual: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
    rows, total = add_rms_norm_fp8(x, residual, weight, EPS)
    return *pair(rows), total


def apart_added(x: Tensor, residual: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
    normed, total = add_rms_norm(x, residual, weight, EPS)
    return *pair(quantize_rows(normed)), total


VARIANTS: dict[str, dict[str, Callable[..., tuple[Tensor, ...]]]] = {
    "quantize_rows": {
        "torch": plain.quantize_rows_reference,
        "ours": lambda x: pair(quantize_rows(x)),
    },
    "rms_norm_fp8": {
        "torch": lambda x, weight: plain.rms_norm_fp8_reference(x, weight, EPS),
        "apart": lambda x, weight: pair(quantize_rows(rms_norm(x, weight, EPS))),
        "ours": lambda x, weight: pair(rms_norm_fp8(x, weight, EPS)),
    },
    "add_rms_norm_fp8": {
        "torch": lambda *tensors: plain.add_rms_norm_fp8_reference(*tensors, EPS),
        "apart": apart_added,
        "ours": ours_added,
    },
}


if __name__ == "__main__":
    main()
