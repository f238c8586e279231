"""Random products for linear and swiglu_linear, and the checks that every backend must pass."""

from typing import NamedTuple

import torch
from attention_cases import Draw, poisoned

from grace.kernels.fp8_rows.rows import Fp8Rows
from grace.kernels.linear import gate_bound, linear, swiglu_linear, swiglu_linear_fp8
from grace.kernels.linear.choice import candidates_for, run_candidate
from grace.kernels.linear.operands import Operands

FP8 = torch.float8_e4m3fn


def let_the_interpreter_loop():
    """Make loop bounds from arrays of one, as Triton's interpreter did before NumPy 2.4."""
    from triton.runtime import interpreter

    patch = interpreter._patch_lang_tensor

    def patch_and_mend(tensor, scope):
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: self.handle.data.item())

    interpreter._patch_lang_tensor = patch_and_mend


def matrix(draw, dtype, rows, depth):
    """A normal matrix, or FP8 rows of about that size."""
    if dtype != FP8:
        return draw.normal(rows, depth).to(dtype)
    scales = (draw.normal(rows).float().abs() + 0.5) / 64
    return Fp8Rows((64 * draw.normal(rows, depth)).to(FP8), scales)


def gate_input(draw, dtype, rows, depth):
    """A matrix whose products with others are about 1, so that gates are half open."""
    x = matrix(draw, dtype, rows, depth)
    return Fp8Rows(x.values, x.scales / depth**0.5) if isinstance(x, Fp8Rows) else x / depth**0.5


class Sums(NamedTuple):
    """Products in float64, and how far a backend's may be off before anything follows them.

    Attributes:
        exact: `[rows, N]`.
        error: `[rows, N]`: of the sum, and of a rounding before the epilogue.
        rounding: relative error of one rounding to the result's dtype.
        again: whether the backend rounds before the epilogue as well as after it.
    """

    exact: torch.Tensor
    error: torch.Tensor
    rounding: float
    again: bool


def sums(x, weight, backend):
    """The exact sums of a product and the error that `backend` may make in them.

    Matrix units keep about 13 bits of a sum of FP8 numbers at each of up to a hundred additions of
    32 products. By a model of them (all aligned to the largest, the rest cut off) the error is up
    to 2^-11.4 of the sum of magnitudes, for 16 to 4,864 products. Other sums are float32, or
    float64. What cuBLAS returns is rounded.
    """
    dtype = torch.bfloat16 if isinstance(x, Fp8Rows) else x.dtype
    kept = 2.0**-10 if isinstance(x, Fp8Rows) else 2.0**-48 if dtype == torch.float64 else 2.0**-19
    x, weight, rounding = double(x), double(weight), torch.finfo(dtype).eps / 2
    exact, again = x @ weight.T, backend in ("cublas", "auto")
    error = kept * (x.abs() @ weight.abs().T)
    return Sums(exact, error + again * rounding * exact.abs(), rounding, again)


def check_linear(draw, backend, dtype, rows, columns, depth, residual=False, bias=False):
    """One product against float64; a row of NaN stays alone."""
    x, weight = matrix(draw, dtype, rows, depth), matrix(draw, dtype, columns, depth)
    out = torch.bfloat16 if dtype == FP8 else dtype
    extra = {
        "residual": draw.normal(rows, columns).to(out) if residual else None,
        "bias": draw.normal(columns).to(out) if bias else None,
    }
    with poisoned(), draw.pinned():
        got = linear(x, weight, **extra, backend=backend)
    exact, allowed = expected_linear(sums(x, weight, backend), **extra)
    check_within(got, exact, allowed, out)
    if rows > 1:
        lost = int(draw.integers(0, rows, 1))
        others = torch.arange(rows, device=draw.device) != lost
        spoil(x, lost)
        with poisoned(), draw.pinned():
            again = linear(x, weight, **extra, backend=backend)
        assert again[lost].isnan().all()
        check_within(again[others], exact[others], allowed[others], out)


def expected_linear(made, residual, bias):
    """Return the exact result and the error allowed; bias and residual may be added one by one."""
    terms = [term.double() for term in (bias, residual) if term is not None]
    exact, size = sum(terms, made.exact), sum(map(abs, terms), made.exact.abs() + made.error)
    return exact, made.error + (len(terms) * made.again + 1) * made.rounding * size


def check_within(got, exact, allowed, dtype):
    assert got.dtype == dtype
    assert got.shape == exact.shape
    assert got.is_contiguous()
    least = torch.finfo(dtype).tiny * torch.finfo(dtype).eps  # numbers near 0 are multiples of it
    excess = (got.double() - exact).abs() - allowed - least
    assert (excess <= 0).all(), f"off by {excess.max()} more than allowed"


def check_swiglu_linear(draw, backend, dtype, rows, columns, depth):
    x, gate_up = gate_input(draw, dtype, rows, depth), matrix(draw, dtype, 2 * columns, depth)
    with poisoned(), draw.pinned():
        got = swiglu_linear(x, gate_up, backend)
    out = torch.bfloat16 if dtype == FP8 else dtype
    check_within(got, *expected_swiglu(sums(x, gate_up, backend)), out)


def expected_swiglu(made):
    """Return the exact result, and the error allowed after its rounding to its dtype."""
    exact, error = gated(made)
    return exact, error + made.rounding * (exact.abs() + error)


def expected_swiglu_fp8(made, scales):
    """Return the exact result, and the error allowed after its rounding to E4M3 by `scales`."""
    exact, error = expected_swiglu(made) if made.again else gated(made)
    # Half a step of E4M3 is up to 1/16 of a number, or 2^-10 for the least.
    return exact, error + (exact.abs() + error) / 16 + 2.0**-10 * scales[:, None]


def gated(made):
    """Return `silu(g) u` of exact gates and values, and how far it is off for those with errors.

    With errors d of g and e of u it is off by at most `|u| s d + |silu(g)| e + s d e`, s the
    largest slope of silu between g and g + d; the slope changes by at most 0.5 per unit. The
    formula itself is computed in float32 or better.
    """
    (gate, up), (gate_error, up_error) = (
        x.unflatten(1, (-1, 2)).unbind(2) for x in (made.exact, made.error)
    )
    opened = torch.sigmoid(gate)
    silu = gate * opened
    slope = (opened + silu * (1 - opened)).abs() + 0.5 * gate_error
    error = up.abs() * slope * gate_error + silu.abs() * up_error + slope * gate_error * up_error
    exact = silu * up
    return exact, error + 2.0**-18 * exact.abs()


def check_swiglu_linear_fp8(draw, backend, dtype, rows, columns, depth):
    """Against float64, within half a step of E4M3; rows of zeros and of NaN stay alone."""
    x, gate_up = gate_input(draw, dtype, rows, depth), matrix(draw, dtype, 2 * columns, depth)
    scales = bound_scales(x, gate_up)
    with poisoned(), draw.pinned():
        got = swiglu_linear_fp8(x, gate_up, scales, backend)
    assert got.scales is scales
    assert got.values.dtype == FP8
    assert got.values.is_contiguous()
    exact, allowed = expected_swiglu_fp8(sums(x, gate_up, backend), scales)
    assert (exact.abs() <= 448 * scales[:, None]).all()
    assert ((got.float().double() - exact).abs() <= allowed).all()
    if rows > 2:
        zero, lost = 0, 2
        (x.values if isinstance(x, Fp8Rows) else x)[zero] = 0
        spoil(x, lost)
        scales = bound_scales(x, gate_up)
        assert scales[zero] == 1
        with poisoned(), draw.pinned():
            again = swiglu_linear_fp8(x, gate_up, scales, backend).float()
        assert (again[zero] == 0).all()
        assert again[lost].isnan().all()
        others = [row for row in range(rows) if row not in (zero, lost)]
        assert ((again.double() - exact).abs() <= allowed)[others].all()


def bound_scales(x, gate_up):
    squares = (x.float() if isinstance(x, Fp8Rows) else x).float().square().sum(1)
    return (squares * gate_bound(gate_up) / 448).masked_fill(squares == 0, 1)


def operands(draw, dtype, rows, columns, depth, gated, residual=False, narrow=False):
    x, weight = gate_input(draw, dtype, rows, depth), matrix(draw, dtype, columns, depth)
    out = torch.bfloat16 if dtype == FP8 else dtype
    added = draw.normal(rows, columns).to(out) if residual else None
    if narrow:
        scales = bound_scales(x, weight)
        return Operands(
            x.values, x.scales, weight.values, weight.scales, added, None, gated, FP8, scales
        )
    if dtype == FP8:
        return Operands(x.values, x.scales, weight.values, weight.scales, added, None, gated, out)
    return Operands(x, None, weight, None, added, None, gated, out)


def check_rows_stand_alone(config, ops):
    """With one configuration a row has the same bits whatever rows stand around it."""
    whole = run_candidate(config, ops)
    for first, last in ((0, 1), (5, 140), (100, 229), (299, 300)):
        rows = slice(first, last)
        some = ops._replace(
            x=ops.x[rows].clone(),
            x_scales=None if ops.x_scales is None else ops.x_scales[rows].clone(),
            residual=None if ops.residual is None else ops.residual[rows].clone(),
            out_scales=None if ops.out_scales is None else ops.out_scales[rows].clone(),
        )
        assert torch.equal(bits(run_candidate(config, some)), bits(whole[rows]))


def bits(matrix):
    return matrix.view(torch.uint8) if matrix.dtype == FP8 else matrix


def check_every_narrow_configuration(draw, rows, columns, depth):
    """What every backend and configuration stores in E4M3, against float64."""
    ops = operands(draw, FP8, rows, columns, depth, True, narrow=True)
    reference = run_candidate(["reference"], ops).double()
    for config in candidates_for(ops):
        with poisoned():
            got = run_candidate(config, ops).double()
        exact, allowed = expected_swiglu_fp8(sums_of(ops, config[0]), ops.out_scales)
        assert ((got * ops.out_scales[:, None] - exact).abs() <= allowed).all(), config
        assert (got != reference).double().mean() < 0.05, config
        if config[0] != "cublas":
            check_rows_stand_alone(config, ops)


def check_every_configuration(draw, dtype, rows, columns, depth, gated):
    for residual in (False,) if gated else (False, True):
        ops = operands(draw, dtype, rows, columns, depth, gated, residual)
        for config in candidates_for(ops):
            with poisoned():
                got = run_candidate(config, ops)
            made = sums_of(ops, config[0])
            expected = expected_swiglu(made) if gated else expected_linear(made, ops.residual, None)
            check_within(got, *expected, ops.dtype)
            if config[0] != "cublas":
                check_rows_stand_alone(config, ops)


def sums_of(ops, backend):
    if ops.x_scales is None:
        return sums(ops.x, ops.weight, backend)
    return sums(Fp8Rows(ops.x, ops.x_scales), Fp8Rows(ops.weight, ops.weight_scales), backend)


def double(x):
    return x.values.double() * x.scales.double()[:, None] if isinstance(x, Fp8Rows) else x.double()


def spoil(x, row):
    if isinstance(x, Fp8Rows):
        x.scales[row] = torch.nan  # Triton's interpreter takes an FP8 NaN for a number
    else:
        x[row] = torch.nan


def check_small(backend, dtypes, device="cpu"):
    """Every epilogue at sizes that the interpreter can bear."""
    for seed, dtype in enumerate(dtypes):
        draw = Draw(seed, device, torch.float32)
        check_linear(draw, backend, dtype, 37, 48, 160)
        check_linear(draw, backend, dtype, 1, 16, 32, residual=True)
        check_linear(draw, backend, dtype, 130, 16, 16, residual=True, bias=True)
        check_linear(draw, backend, dtype, 3, 144, 144, bias=True)
        check_swiglu_linear(draw, backend, dtype, 5, 24, 80)
        check_swiglu_linear_fp8(draw, backend, dtype, 5, 48, 80)
        check_swiglu_linear_fp8(draw, backend, dtype, 70, 16, 160)


def check_many(backend, dtype, seed):
    """Every epilogue at random sizes on a GPU."""
    draw = Draw(seed, "cuda", torch.float32)
    for _ in range(4):
        rows = draw.choice((1, 2, 63, 128, 129, 1000, 2049, 4096))
        columns = draw.choice((16, 48, 128, 512, 1000, 1024, 3072))
        depth = draw.choice((16, 64, 160, 1000, 1024, 4864)) // 16 * 16
        columns = columns // 16 * 16
        residual, bias = draw.choice(((0, 0), (1, 0), (0, 1), (1, 1)))
        check_linear(draw, backend, dtype, rows, columns, depth, residual, bias)
        check_swiglu_linear(draw, backend, dtype, rows, columns, depth)
        check_swiglu_linear_fp8(draw, backend, dtype, rows, columns, depth)
