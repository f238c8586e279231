"""A linear layer on rows, with what follows it: bias, residual, SwiGLU's gate, scales of FP8."""

from __future__ import annotations

import torch
from torch import Tensor

from grace.kernels.backends import check_float, check_form, form, runs_plain
from grace.kernels.fp8_rows.rows import Fp8Rows
from grace.kernels.linear.choice import BACKENDS, reason_against, run_backend
from grace.kernels.linear.operands import Operands
from grace.kernels.linear.reference import gate_bounds_reference

MOST_POWER = 24  # so that no weight of a common size leaves its dtype's range


def linear(
    x: Tensor | Fp8Rows,
    weight: Tensor | Fp8Rows,
    residual: Tensor | None = None,
    bias: Tensor | None = None,
    backend: str = "auto",
) -> Tensor:
    """Return `x @ weight.T`, plus the bias, plus the residual. No gradients.

    Sums are float32 (float64 for float64). From bfloat16 and float16 our kernels round once, while
    cuBLAS may round the product before bias and residual are added, and its partial sums where
    torch allows it (`allow_bf16_reduced_precision_reduction`). From FP8 the matrix units keep
    about 13 bits of a sum, in every backend but the reference.

    A row's result does not depend on the other rows' values, NaN neither. In one configuration of
    our kernels it does not depend on the number of rows either, bit for bit; a configuration is
    chosen per shape, so between numbers of rows, as with cuBLAS, last bits may differ.

    Args:
        x: `[rows, K]`, any floating dtype, or FP8 rows; rows may be 0.
        weight: `[N, K]` of x's dtype, or FP8 rows with FP8 rows.
        residual: `[rows, N]` of x's dtype, bfloat16 for FP8.
        bias: `[N]` of that dtype.
        backend: `auto`, `cublas` (torch's product), `triton` or `gluon` (one persistent kernel,
            the latter with roles for its warps; bfloat16, float16 and FP8, matrices whose rows are
            multiples of 16 bytes, compute capability 9) or `reference`. `auto` is the reference on
            a CPU; on CUDA the fastest of the others and of their configurations, measured at the
            first call of a shape (rows rounded up to a power of two) and kept on disk
            (`grace.kernels.tuning`); a shape first met inside a graph's capture gets `cublas`, or
            the reference where torch's product in FP8 does not take N and K.

    Returns:
        `[rows, N]` of x's dtype, bfloat16 for FP8; contiguous.

    Raises:
        ValueError: if shapes, dtypes, devices or the backend do not fit.
    """
    return _run(x, weight, residual, bias, False, backend)


def swiglu_linear(x: Tensor | Fp8Rows, gate_up: Tensor | Fp8Rows, backend: str = "auto") -> Tensor:
    """Return `silu(gate) * up` of x's gates and values, as `linear` and `swiglu` compute them.

    Our kernels do not round the product before the gate; cuBLAS does. No gradients.

    Args:
        x: as in `linear`.
        gate_up: `[2 F, K]`, as the weight in `linear`; row 2 f makes gate f and row 2 f + 1 its
            value (`interleave_gate_up`).
        backend: as in `linear`.

    Returns:
        `[rows, F]` of x's dtype, bfloat16 for FP8; contiguous.

    Raises:
        ValueError: if shapes, dtypes, devices or the backend do not fit.
    """
    return _run(x, gate_up, None, None, True, backend)


def swiglu_linear_fp8(
    x: Tensor | Fp8Rows, gate_up: Tensor | Fp8Rows, scales: Tensor, backend: str = "auto"
) -> Fp8Rows:
    """Return `swiglu_linear` in FP8, by scales that are known before any of its numbers.

    They should be bounds, since what passes 448 times its row's scale saturates or, by cuBLAS and
    the reference, is NaN. A norm that is told of the weight's `gate_bound` returns such scales.
    They are larger than a row's largest number asks for, but E4M3 is a floating-point format: down
    to 2^-15 of what a scale can hold, a number keeps its three bits. No gradients.

    Args:
        x: as in `linear`.
        gate_up: as in `swiglu_linear`.
        scales: float32 `[rows]`, of the result; none 0.
        backend: as in `linear`; rows of `F` bytes, too, must then be multiples of 16 bytes.

    Returns:
        Values `[rows, F]`, and `scales`.

    Raises:
        ValueError: if shapes, dtypes, devices or the backend do not fit.
    """
    return Fp8Rows(_run(x, gate_up, None, None, True, backend, scales), scales)


def gate_bound(gate_up: Tensor | Fp8Rows) -> float:
    """Return b such that no `|silu(gate) * up|` of a row x passes b times x's squared length.

    With a gate's weights g and its value's weights u, `|silu(x g) (x u)|` is at most `|x g u x|`, a
    quadratic form, whose largest magnitude over x of length 1 is `(|g| |u| + |g u|) / 2`.

    Args:
        gate_up: as in `swiglu_linear`.

    Raises:
        ValueError: if the number of rows is odd.
    """
    matrix = gate_up.float() if isinstance(gate_up, Fp8Rows) else gate_up
    if matrix.ndim != 2 or matrix.shape[0] % 2 or matrix.shape[0] == 0:
        raise ValueError(f"gate_up must be [2 F, K], F not 0, got {form(matrix)}")
    return gate_bounds_reference(matrix).amax().item()


def equalise_gates(gate_up: Tensor, down: Tensor) -> tuple[Tensor, Tensor]:
    """Return weights of the same function whose gates have about the same bound.

    One gate with large weights would have `gate_bound` speak for itself alone, and
    `swiglu_linear_fp8` keep fewer bits of the others. So each value's weights are divided, and what
    reads it multiplied, by a power of two, which rounds nothing.

    Args:
        gate_up: `[2 F, K]`, as in `swiglu_linear`.
        down: `[N, F]`, of the product that follows.
    """
    bounds = gate_bounds_reference(gate_up)
    typical = bounds[bounds > 0].log2().median() if (bounds > 0).any() else bounds.new_zeros(())
    powers = (bounds.log2() - typical).round().nan_to_num(0, 0, 0).clamp(-MOST_POWER, MOST_POWER)
    factors = powers.exp2().to(gate_up.dtype)
    both = torch.stack([torch.ones_like(factors), 1 / factors], 1).flatten()
    return gate_up * both[:, None], down * factors


def interleave_gate_up(weight: Tensor) -> Tensor:
    """Return a weight `[2 F, K]` of F gates, then F values, with each gate before its value.

    Raises:
        ValueError: if the number of rows is odd.
    """
    if weight.ndim != 2 or weight.shape[0] % 2:
        raise ValueError(f"weight must be [2 F, K], got {form(weight)}")
    return torch.stack(weight.chunk(2), dim=1).flatten(0, 1)


def _run(
    x: Tensor | Fp8Rows,
    weight: Tensor | Fp8Rows,
    residual: Tensor | None,
    bias: Tensor | None,
    swiglu: bool,
    backend: str,
    out_scales: Tensor | None = None,
) -> Tensor:
    dtype = _check(x, weight, residual, bias, swiglu)
    if out_scales is not None:
        rows = x.scales if isinstance(x, Fp8Rows) else x.new_empty((0,), dtype=torch.float32)
        check_form("scales", out_scales, (len(x.values if isinstance(x, Fp8Rows) else x),), rows)
        dtype = torch.float8_e4m3fn
    if backend not in BACKENDS:
        raise ValueError(f"backend must be one of {', '.join(BACKENDS)}, got {backend!r}")
    x, x_scales = (x.values, x.scales) if isinstance(x, Fp8Rows) else (x, None)
    weight, scales = (
        (weight.values, weight.scales) if isinstance(weight, Fp8Rows) else (weight, None)
    )
    if backend == "auto" and x.device.type == "cpu":
        backend = "reference"
    arguments = (
        x, x_scales, weight, scales, residual, bias, swiglu, dtype, backend, out_scales,
    )  # fmt: skip
    return _backend(*arguments) if runs_plain(backend) else torch.ops.grace.linear(*arguments)


def _check(
    x: Tensor | Fp8Rows,
    weight: Tensor | Fp8Rows,
    residual: Tensor | None,
    bias: Tensor | None,
    swiglu: bool,
) -> torch.dtype:
    """Refuse what does not fit, and return the dtype of the result."""
    if isinstance(x, Fp8Rows) != isinstance(weight, Fp8Rows):
        raise ValueError("x and weight must both be FP8 rows, or neither")
    if isinstance(x, Fp8Rows):
        like = x.scales.new_empty((0,), dtype=torch.bfloat16)
        for name, rows in (("x", x), ("weight", weight)):
            if rows.values.dtype != torch.float8_e4m3fn:
                raise ValueError(f"{name} must be float8_e4m3fn, got {form(rows.values)}")
            check_form(f"the scales of {name}", rows.scales, rows.values.shape[:1], x.scales)
        x, weight = x.values, weight.values
    else:
        check_float("x", x)
        like = x
    if x.ndim != 2 or x.shape[1] == 0:
        raise ValueError(f"x must be [rows, K], K not 0, got {form(x)}")
    if weight.ndim != 2 or weight.shape[0] == 0 or weight.shape[0] % (1 + swiglu):
        wanted = "[2 F, K], F not 0" if swiglu else "[N, K], N not 0"
        raise ValueError(
            f"{'gate_up' if swiglu else 'weight'} must be {wanted}, got {form(weight)}"
        )
    columns, (rows, depth) = weight.shape[0], x.shape
    check_form("gate_up" if swiglu else "weight", weight, (columns, depth), x)
    if residual is not None:
        check_form("residual", residual, (rows, columns), like)
    if bias is not None:
        check_form("bias", bias, (columns,), like)
    return like.dtype


def _backend(
    x: Tensor,
    x_scales: Tensor | None,
    weight: Tensor,
    weight_scales: Tensor | None,
    residual: Tensor | None,
    bias: Tensor | None,
    swiglu: bool,
    dtype: torch.dtype,
    backend: str,
    out_scales: Tensor | None = None,
) -> Tensor:
    ops = Operands(
        x.contiguous(), x_scales, weight.contiguous(), weight_scales,
        None if residual is None else residual.contiguous(), bias, swiglu, dtype, out_scales,
    )  # fmt: skip
    if backend in ("triton", "gluon") and (reason := reason_against(backend, ops)):
        raise ValueError(f"backend {backend} cannot run this: {reason}; use auto")
    return run_backend(backend, ops)


_linear = torch.library.custom_op("grace::linear", _backend, mutates_args=())


@_linear.register_fake
def _(
    x: Tensor,
    x_scales: Tensor | None,
    weight: Tensor,
    weight_scales: Tensor | None,
    residual: Tensor | None,
    bias: Tensor | None,
    swiglu: bool,
    dtype: torch.dtype,
    backend: str,
    out_scales: Tensor | None = None,
) -> Tensor:
    return x.new_empty((x.shape[0], weight.shape[0] // (1 + swiglu)), dtype=dtype)
