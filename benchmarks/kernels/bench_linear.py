"""What do a decoder's matrix products cost, by cuBLAS and by our kernels, in bfloat16 and in FP8?

Every product of a layer and the head, over the rows that its steps have: the beams of one request
and those of a batch. Each backend gets the fastest of its configurations (`--candidates` shows all
of them) and must agree with the float32 reference before it is timed; cuBLAS's time includes what
it leaves to other kernels, the gate and the residual. Quantising x is timed alone. `fp8 over
bfloat16` holds FP8's time against bfloat16's, the best of each: below 1, FP8 pays.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import math
import multiprocessing
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Any, NamedTuple

import torch
from torch import Tensor

from benchmarks import record
from benchmarks.kernels import timing
from grace.kernels.fp8_rows import quantize_rows
from grace.kernels.linear.choice import candidates_for, run_candidate
from grace.kernels.linear.operands import Operands

PEAK = {torch.bfloat16: 989e12, torch.float8_e4m3fn: 1979e12}  # flop/s of H100 and H200, dense
NAMES = {torch.bfloat16: "bfloat16", torch.float8_e4m3fn: "fp8"}
TOLERANCE = 3e-2  # of sums of about 1: bfloat16's rounding and FP8's short sums
COLD_BYTES = 2**28  # of all sets of inputs together, so that none stays in the cache
TRIES = 10  # replays of one configuration


class Product(NamedTuple):
    """One matrix product of a layer."""

    name: str
    depth: int
    columns: int
    residual: bool = False
    swiglu: bool = False


def main(arguments: Sequence[str] | None = None) -> None:
    """Check that all agree, time them, show the rows."""
    parser = timing.parser(__doc__)
    parser.add_argument("--beams", type=int, nargs="+", default=[512, 1024])
    parser.add_argument("--model-dim", type=int, default=1024)
    parser.add_argument("--ffn-dim", type=int, default=4864)
    parser.add_argument("--vocab-size", type=int, default=512)
    parser.add_argument("--products", nargs="+", metavar="NAME", help="all by default")
    parser.add_argument("--candidates", action="store_true", help="print every configuration's ms")
    parser.add_argument("--workers", type=int, default=12, help="processes that compile first")
    options = parser.parse_args(arguments)
    wide, model = options.heads * options.head_dim, options.model_dim
    products = [
        Product("qkv", model, wide + 2 * options.kv_heads * options.head_dim),
        Product("attention output", wide, model, residual=True),
        Product("cross query", model, wide),
        Product("gate_up", model, 2 * options.ffn_dim, swiglu=True),
        Product("down", options.ffn_dim, model, residual=True),
        Product("head", model, options.vocab_size),
    ]
    chosen = [p for p in products if not options.products or p.name in options.products]
    all_rows = sorted({batch * beams for batch in (1, options.batch) for beams in options.beams})
    if options.device == "cuda" and options.workers:
        compile_first(chosen, all_rows, options)
    rows = [
        row for product in chosen for r in all_rows for row in measure_product(product, r, options)
    ]
    timing.finish("linear", rows, options)


def measure_product(product: Product, rows: int, options: argparse.Namespace) -> Iterator[dict]:
    """Rows of one product over so many rows of x."""
    case, best_ms = f"{product.name}, {rows} rows", {}
    flop = 2 * rows * product.depth * product.columns
    for dtype, name in NAMES.items():
        sets = random_sets(product, rows, dtype, options)
        for candidate in fastest(sets, f"{case}, {name}", options):
            calls = [functools.partial(run_candidate, candidate, ops) for ops in sets]
            stats = timing.measure(calls, options.replays, options.device)
            variant, ms = f"{candidate[0]}, {name}", stats["value"]
            best_ms[name] = min(ms, best_ms.get(name, math.inf))
            counts = {"flop": flop}
            yield record.row(case, variant, "latency", "ms", **stats, counts=counts)
            yield record.row(case, variant, "throughput", "flop/s", flop / ms * 1e3, counts=counts)
            if options.device == "cuda":
                share = flop / ms * 1e3 / PEAK[dtype]
                yield record.row(case, variant, "share of peak", "rate", share, counts=counts)
    draws = [random_matrix(rows, product.depth, 1.0, seed, options) for seed in range(len(sets))]
    calls = [functools.partial(quantize_rows, x) for x in draws]
    stats = timing.measure(calls, options.replays, options.device)
    yield record.row(case, "quantising x", "latency", "ms", **stats)
    for variant, extra in (("product alone", 0), ("with quantising x", stats["value"])):
        ratio = (best_ms["fp8"] + extra) / best_ms["bfloat16"]
        yield record.row(case, variant, "fp8 over bfloat16", "ratio", ratio)


def compile_first(
    products: list[Product], all_rows: list[int], options: argparse.Namespace
) -> None:
    """Fill Triton's cache from several processes: there are hundreds of configurations."""
    jobs = {
        (tuple(candidate), product.residual, product.swiglu, dtype)
        for product in products
        for rows in all_rows
        for dtype in NAMES
        for candidate in candidates_for(small_operands(rows, product, dtype))
    }
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(options.workers, mp_context=context) as pool:
        list(pool.map(compile_one, sorted(jobs, key=str)))


def compile_one(job: tuple) -> None:
    """Run a configuration once on a small product of the same form."""
    from triton.errors import TritonError

    candidate, residual, swiglu, dtype = job
    with contextlib.suppress(RuntimeError, TritonError):  # what cannot run is named later
        run_candidate(
            list(candidate), small_operands(16, Product("", 0, 0, residual, swiglu), dtype)
        )


def small_operands(rows: int, product: Product, dtype: torch.dtype) -> Operands:
    """Zeros that a kernel compiles for as for any multiples of 16."""
    x, weight = (torch.zeros(n, 128, dtype=dtype, device="cuda") for n in (rows, 64))
    scales = [
        torch.zeros(n, device="cuda") if dtype != torch.bfloat16 else None for n in (rows, 64)
    ]
    residual = torch.zeros(rows, 64, dtype=torch.bfloat16, device="cuda")
    return Operands(
        x, scales[0], weight, scales[1], residual if product.residual else None, None,
        product.swiglu, torch.bfloat16,
    )  # fmt: skip


def fastest(sets: list[Operands], what: str, options: argparse.Namespace) -> list[list[Any]]:
    """Return the fastest configuration of each backend; what cannot run here is left out."""
    exact = run_candidate(["reference"], sets[0]).float()
    if options.device == "cpu":
        return [["reference"]]
    from triton.errors import TritonError

    times_ms: dict[str, list[tuple[float, list[Any]]]] = {}
    for candidate in candidates_for(sets[0]):
        try:
            got = run_candidate(candidate, sets[0]).float()
            torch.cuda.synchronize()
        except (RuntimeError, TritonError) as error:
            print(f"{what}, {candidate}: not run, {str(error).splitlines()[0]}")
            continue
        torch.testing.assert_close(got, exact, rtol=TOLERANCE, atol=TOLERANCE)
        calls = [functools.partial(run_candidate, candidate, ops) for ops in sets]
        ms = timing.measure(calls, TRIES, options.device)["value"]
        times_ms.setdefault(candidate[0], []).append((ms, candidate))
        if options.candidates:
            sizes = (*sets[0].x.shape, sets[0].weight.shape[0])
            print(f"{what}, {candidate}: {ms:.4f} ms, {2e-9 * math.prod(sizes) / ms:.0f} TFLOP/s")
    return [min(timed)[1] for timed in times_ms.values()]


def random_sets(
    product: Product, rows: int, dtype: torch.dtype, options: argparse.Namespace
) -> list[Operands]:
    """Distinct operands, so many that the cache cannot hold them all."""
    num_bytes = dtype.itemsize * product.depth * (rows + product.columns)
    num_sets = min(max(math.ceil(COLD_BYTES / num_bytes), 3), 24) if options.device == "cuda" else 1
    return [random_operands(product, rows, dtype, seed, options) for seed in range(num_sets)]


def random_operands(
    product: Product, rows: int, dtype: torch.dtype, seed: int, options: argparse.Namespace
) -> Operands:
    """Normal x, weights of about 1 / sqrt(K)."""
    x = random_matrix(rows, product.depth, 1.0, 3 * seed, options)
    weight = random_matrix(
        product.columns, product.depth, product.depth**-0.5, 3 * seed + 1, options
    )
    residual = (
        random_matrix(rows, product.columns, 1.0, 3 * seed + 2, options)
        if product.residual
        else None
    )
    tail = (residual, None, product.swiglu, torch.bfloat16)
    if dtype == torch.bfloat16:
        return Operands(x, None, weight, None, *tail)
    left, right = quantize_rows(x), quantize_rows(weight)
    return Operands(left.values, left.scales, right.values, right.scales, *tail)


def random_matrix(
    rows: int, columns: int, scale: float, seed: int, options: argparse.Namespace
) -> Tensor:
    """Normal bfloat16 of a standard deviation."""
    draw = torch.Generator(options.device).manual_seed(seed)
    shape = (rows, columns)
    normal = torch.randn(shape, generator=draw, device=options.device)
    return (scale * normal).to(torch.bfloat16)


if __name__ == "__main__":
    main()
