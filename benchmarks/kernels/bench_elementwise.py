"""What do RMSNorm and SwiGLU's gate cost, by torch, by its compiler and by our kernels?

Over the rows of a decoder step at the paper's width. Each must agree with the float32 reference
before it is timed.
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Callable, Iterator, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks import record
from benchmarks.kernels import timing
from grace.kernels.rms_norm import add_rms_norm, rms_norm
from grace.kernels.swiglu import swiglu

EPS = 1e-6
TOLERANCE = 2e-2  # of bfloat16
SETS = 3


def main(arguments: Sequence[str] | None = None) -> None:
    """Check that all agree, time them, show the rows."""
    parser = timing.parser(__doc__)
    parser.add_argument("--beams", type=int, default=1024)
    parser.add_argument("--model-dim", type=int, default=1024)
    parser.add_argument("--ffn-dim", type=int, default=4864)
    options = parser.parse_args(arguments)
    shape = (options.batch * options.beams, options.model_dim)
    wide = (shape[0], 2 * options.ffn_dim)
    weight = random([(options.model_dim,)], 0, options)[0]
    rows = [
        *measure_kernel("rms_norm", rms_norm, torch_norm, [shape], [weight, EPS], options),
        *measure_kernel(
            "add_rms_norm", add_rms_norm, torch_add_norm, [shape, shape], [weight, EPS], options
        ),
        *measure_kernel("swiglu", swiglu, torch_swiglu, [wide], [], options),
    ]
    timing.finish("elementwise", rows, options)


def measure_kernel(
    case: str,
    ours: Callable,
    theirs: Callable,
    shapes: list[tuple[int, ...]],
    others: list,
    options: argparse.Namespace,
) -> Iterator[dict]:
    """Rows of one kernel; `shapes` are those of its activations, `others` what follows them."""
    sets = [[*random(shapes, seed, options), *others] for seed in range(SETS)]
    exact_inputs = [x.float() if torch.is_tensor(x) else x for x in sets[0]]
    exact = as_tuple(ours(*exact_inputs, backend="reference"))
    inputs = [x for x in sets[0] if torch.is_tensor(x)]
    moved = sum(x.numel() for x in (*inputs, *exact)) * inputs[0].element_size()
    variants = {"torch": theirs, "ours": ours}
    if options.device == "cuda":
        variants["torch.compile"] = torch.compile(theirs)
    for variant, run in variants.items():
        for got, wanted in zip(as_tuple(run(*sets[0])), exact, strict=True):
            torch.testing.assert_close(got.float(), wanted, rtol=TOLERANCE, atol=TOLERANCE)
        calls = [functools.partial(run, *s) for s in sets]
        stats = timing.measure(calls, options.replays, options.device)
        yield record.row(case, variant, "latency", "ms", **stats)
        yield from timing.bandwidth_rows(case, variant, stats["value"], moved, options.device)


def torch_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return F.rms_norm(x, x.shape[-1:], weight, eps)


def torch_add_norm(
    x: Tensor, residual: Tensor, weight: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    total = x + residual
    return torch_norm(total, weight, eps), total


def torch_swiglu(gate_up: Tensor) -> Tensor:
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate) * up


def as_tuple(result: Tensor | tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return (result,) if torch.is_tensor(result) else result


def random(shapes: list[tuple[int, ...]], seed: int, options: argparse.Namespace) -> list[Tensor]:
    """Normal bfloat16 tensors."""
    draw = torch.Generator(options.device).manual_seed(seed)
    like = {"generator": draw, "device": options.device, "dtype": torch.bfloat16}
    return [torch.randn(shape, **like) for shape in shapes]


if __name__ == "__main__":
    main()
