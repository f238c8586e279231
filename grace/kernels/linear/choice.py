"""The backends of linear, and which of them a shape gets."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from grace.kernels.backends import HAS_TRITON
from grace.kernels.linear.cublas import linear_cublas
from grace.kernels.linear.operands import Operands
from grace.kernels.linear.reference import linear_reference
from grace.kernels.tuning import choose

BACKENDS = ("auto", "cublas", "triton", "gluon", "reference")
TRITON_DTYPES = (torch.bfloat16, torch.float16, torch.float8_e4m3fn)


def run_backend(backend: str, ops: Operands) -> Tensor:
    """Run one backend or the fastest; the contract is `linear`'s."""
    if ops.x.shape[0] == 0:
        return ops.new_output()
    if backend in ("reference", "cublas"):
        return run_candidate([backend], ops)
    candidates = candidates_for(ops)
    if backend == "auto":
        candidates = worth_measuring(candidates, ops)
    else:
        candidates = [candidate for candidate in candidates if candidate[0] == backend]
    rows, depth = ops.x.shape
    shape = (
        backend, 1 << (rows - 1).bit_length(), ops.weight.shape[0], depth, str(ops.x.dtype),
        str(ops.dtype), ops.swiglu, ops.residual is not None, ops.bias is not None,
    )  # fmt: skip
    device = ops.x.device
    chosen = choose("linear", shape, candidates, lambda c: run_candidate(c, ops), device)
    return run_candidate(chosen, ops)


def run_candidate(candidate: list[Any], ops: Operands) -> Tensor:
    """Run a backend's name and its configuration, as `candidates_for` gives them."""
    backend, *config = candidate
    if backend == "reference":
        return linear_reference(ops)
    if backend == "cublas":
        return linear_cublas(ops)
    if backend == "triton":
        from grace.kernels.linear.kernel import linear_triton

        return linear_triton(ops, config)
    from grace.kernels.linear.specialized import linear_specialized

    return linear_specialized(ops, config)


def candidates_for(ops: Operands) -> list[list[Any]]:
    """Return what can run these operands on a GPU; the first is the default."""
    # torch._scaled_mm takes whole blocks of 16 only.
    whole = ops.x_scales is None or all(size % 16 == 0 for size in ops.weight.shape)
    candidates: list[list[Any]] = [["cublas" if whole else "reference"]]
    form = (ops.x.shape[0], ops.swiglu, ops.residual is not None)
    if not reason_against("triton", ops):
        from grace.kernels.linear.kernel import triton_candidates

        candidates += [["triton", *config] for config in triton_candidates(*form)]
    if not reason_against("gluon", ops):
        from grace.kernels.linear.specialized import specialized_candidates

        candidates += [["gluon", *config] for config in specialized_candidates(*form)]
    return candidates


def worth_measuring(candidates: list[list[Any]], ops: Operands) -> list[list[Any]]:
    """Return the candidates that may beat the first: each costs a compilation at a first call.

    Ours win where they save a pass, with a gate or a residual; of plain products only those in FP8
    came out faster, in Gluon, by a few percent (`python -m benchmarks.kernels.bench_linear`).
    """
    if ops.swiglu or ops.residual is not None:
        return candidates
    return [
        c
        for i, c in enumerate(candidates)
        if i == 0 or (ops.x_scales is not None and c[0] == "gluon")
    ]


def reason_against(backend: str, ops: Operands) -> str:
    """Return why `triton` or `gluon` cannot run these operands, or nothing."""
    if not HAS_TRITON:
        return "Triton is not installed"
    if ops.x.dtype not in TRITON_DTYPES:
        return f"{ops.x.dtype} is none of bfloat16, float16 and float8_e4m3fn"
    device = ops.x.device
    major = torch.cuda.get_device_capability(device)[0] if device.type == "cuda" else 0
    if device.type == "cuda" and major < 9:
        return "the GPU has no TMA"
    if backend == "gluon" and major != 9:
        return "it is written for GPUs of compute capability 9"
    columns = ops.weight.shape[0] // (1 + ops.swiglu)
    for row_bytes in (ops.x.shape[1] * ops.x.element_size(), columns * ops.dtype.itemsize):
        if row_bytes % 16:
            return f"a row of {row_bytes} bytes is no multiple of 16 bytes"
    if any(t is not None and t.data_ptr() % 16 for t in (ops.x, ops.weight, ops.residual)):
        return "a matrix does not start at a multiple of 16 bytes"
    return ""
