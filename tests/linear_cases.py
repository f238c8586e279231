"""Random products for linear and swiglu_linear, and the checks that every backend must pass."""

import torch
from attention_cases import Draw, assert_close, poisoned

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


def check_linear(draw, backend, dtype, rows, columns, depth, residual=False, bias=False):
    """One product against float64; a row of NaN stays alone."""
    x, weight = matrix(draw, dtype, rows, depth), matrix(draw, dtype, columns, depth)
    out = torch.bfloat16 if dtype == FP8 else dtype
    extra = {
        "residual": draw.normal(rows, columns).to(out) if residual else None,
        "bias": draw.normal(columns).to(out) if bias else None,
    }
    wide = {k: v if v is None else v.double() for k, v in extra.items()}
    exact = linear(double(x), double(weight), **wide, backend="reference")
    scale = depth**0.5  # of the sums, to which the tolerance is relative
    with poisoned(), draw.pinned():
        got = linear(x, weight, **extra, backend=backend)
    assert_close(got / scale, exact / scale, out)
    if rows > 1:
        lost = int(draw.integers(0, rows, 1))
        others = torch.arange(rows, device=draw.device) != lost
        spoil(x, lost)
        with poisoned(), draw.pinned():
            again = linear(x, weight, **extra, backend=backend)
        assert again[lost].isnan().all()
        assert_close(again[others] / scale, exact[others] / scale, out)


def check_swiglu_linear(draw, backend, dtype, rows, columns, depth):
    x, gate_up = matrix(draw, dtype, rows, depth), matrix(draw, dtype, 2 * columns, depth)
    x = Fp8Rows(x.values, x.scales / depth**0.5) if isinstance(x, Fp8Rows) else x / depth**0.5
    exact = swiglu_linear(double(x), double(gate_up), "reference")
    with poisoned(), draw.pinned():
        got = swiglu_linear(x, gate_up, backend)
    assert_close(got, exact, torch.bfloat16 if dtype == FP8 else dtype)


def check_swiglu_linear_fp8(draw, backend, dtype, rows, columns, depth):
    """Against float64, within half a step of E4M3; rows of zeros and of NaN stay alone."""
    x, gate_up = matrix(draw, dtype, rows, depth), matrix(draw, dtype, 2 * columns, depth)
    scales = bound_scales(x, gate_up)
    exact = swiglu_linear(double(x), double(gate_up), "reference")
    assert (exact.abs() <= 448 * scales[:, None]).all()
    with poisoned(), draw.pinned():
        got = swiglu_linear_fp8(x, gate_up, scales, backend)
    assert got.scales is scales
    assert got.values.dtype == FP8
    assert got.values.is_contiguous()
    # The sums keep about 13 bits of their largest term, which the bound is about as large as.
    rounded = 2.0**-8 if backend == "cublas" else 2.0**-12
    allowed = exact.abs() * (1 / 16 + rounded) + (2.0**-10 + 448 * rounded / 64) * scales[:, None]
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
    x, weight = matrix(draw, dtype, rows, depth), matrix(draw, dtype, columns, depth)
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
    """What every backend and configuration stores in E4M3 is within a step of the reference's."""
    ops = operands(draw, FP8, rows, columns, depth, True, narrow=True)
    exact = run_candidate(["reference"], ops).double()
    for config in candidates_for(ops):
        with poisoned():
            got = run_candidate(config, ops).double()
        assert ((got - exact).abs() <= exact.abs() / 8 + 2.0**-5).all(), config
        assert (got != exact).double().mean() < 0.05, config
        if config[0] != "cublas":
            check_rows_stand_alone(config, ops)


def check_every_configuration(draw, dtype, rows, columns, depth, gated):
    for residual in (False,) if gated else (False, True):
        ops = operands(draw, dtype, rows, columns, depth, gated, residual)
        ops = ops._replace(x_scales=ops.x_scales / depth**0.5) if dtype == FP8 else ops
        ops = ops._replace(x=ops.x / depth**0.5) if dtype != FP8 else ops
        exact = run_candidate(["reference"], ops).double()
        for config in candidates_for(ops):
            with poisoned():
                got = run_candidate(config, ops)
            assert_close(got, exact, ops.dtype)
            if config[0] != "cublas":
                check_rows_stand_alone(config, ops)


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
        rows = draw.choice((1, 2, 63, 128, 129, 1000, 2049, 8192))
        columns = draw.choice((16, 48, 128, 512, 1000, 1024, 6144))
        depth = draw.choice((16, 64, 160, 1000, 1024, 4864)) // 16 * 16
        columns = columns // 16 * 16
        residual, bias = draw.choice(((0, 0), (1, 0), (0, 1), (1, 1)))
        check_linear(draw, backend, dtype, rows, columns, depth, residual, bias)
        check_swiglu_linear(draw, backend, dtype, rows, columns, depth)
        check_swiglu_linear_fp8(draw, backend, dtype, rows, columns, depth)
