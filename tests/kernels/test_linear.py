"""Every backend of linear and swiglu_linear equals the formula; what does not fit is refused."""

import pytest
import torch
from attention_cases import Draw
from hypothesis import given
from hypothesis import strategies as st
from interpreted import run_interpreted
from linear_cases import (
    FP8,
    check_every_configuration,
    check_every_narrow_configuration,
    check_many,
    check_small,
)

from grace.kernels.fp8_rows.rows import Fp8Rows
from grace.kernels.linear import (
    BACKENDS,
    equalise_gates,
    gate_bound,
    interleave_gate_up,
    linear,
    swiglu_linear,
    swiglu_linear_fp8,
)
from grace.kernels.swiglu import swiglu
from grace.kernels.tuning import pinned

OURS = ("triton", "gluon")


@pytest.fixture(autouse=True, scope="module")
def whole_sums():
    """Let cuBLAS round a sum once: where it may, it rounds partial sums, which can be larger."""
    settings = torch.backends.cuda.matmul
    names = [f"allow_{name}_reduced_precision_reduction" for name in ("bf16", "fp16")]
    before = {name: getattr(settings, name) for name in names}
    for name in names:
        setattr(settings, name, False)
    yield
    for name in names:
        setattr(settings, name, before[name])


def gpu(test):
    """Mark a test that needs a CUDA device."""
    skip = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
    return pytest.mark.gpu(skip(test))


def test_the_reference_is_the_formula():
    check_small("reference", (torch.float64, torch.float32, torch.bfloat16, FP8))
    check_small("auto", (torch.bfloat16,))


def test_torchs_product_is_the_formula():
    check_small("cublas", (torch.float64, torch.float32, torch.bfloat16))


def test_a_gate_and_its_value_lie_side_by_side():
    draw = Draw(0, "cpu", torch.float64)
    x, weight = draw.normal(3, 7), draw.normal(10, 7)
    interleaved = interleave_gate_up(weight)
    assert torch.equal(interleaved[4], weight[2])
    assert torch.equal(interleaved[5], weight[7])
    wanted = swiglu(x @ weight.T)
    torch.testing.assert_close(swiglu_linear(x, interleaved), wanted)
    torch.testing.assert_close(swiglu(x @ interleaved.T, interleaved=True), wanted)


@given(seed=st.integers(0, 2**32), gates=st.integers(1, 5), depth=st.integers(1, 5))
def test_no_row_passes_the_bound_and_some_row_comes_near(seed, gates, depth):
    draw = Draw(seed, "cpu", torch.float64)
    gate_up = draw.normal(2 * gates, depth)
    bound = gate_bound(gate_up)
    x = draw.normal(100, depth)
    gate, up = gate_up.unflatten(0, (gates, 2)).unbind(1)
    forms = gate[:, :, None] @ up[:, None, :]
    vectors = torch.linalg.eigh((forms + forms.mT) / 2).eigenvectors.mT.flatten(0, 1)
    x = torch.cat([x, 1e4 * vectors, -1e4 * vectors])  # where a gate is large, it is open or shut
    share = swiglu_linear(x, gate_up).abs().amax(1) / x.square().sum(1)
    assert share.max() <= bound * (1 + 1e-6)
    assert share.max() >= bound * (1 - 1e-6)


def test_equal_gates_are_the_same_function():
    draw = Draw(0, "cpu", torch.float32)
    gate_up, down, x = draw.normal(14, 5), draw.normal(3, 7), draw.normal(4, 5)
    gate_up[2] *= 300
    gate_up[5] /= 1e4
    gate_up[8:10] = 0
    equal_up, equal_down = equalise_gates(gate_up, down)
    bounds = [gate_bound(equal_up[2 * f : 2 * f + 2]) for f in range(7)]
    assert bounds[4] == 0
    assert max(bounds) <= 2.01 * min(bounds[:4] + bounds[5:])
    wanted = swiglu_linear(x, gate_up) @ down.T
    assert torch.equal(swiglu_linear(x, equal_up) @ equal_down.T, wanted)
    none = equalise_gates(torch.zeros(4, 5), torch.ones(3, 2))
    assert (none[0] == 0).all()
    assert (none[1] == 1).all()


def test_no_rows_give_none():
    for backend in ("reference", "cublas", "auto"):
        out = linear(torch.zeros(0, 8), torch.zeros(4, 8), backend=backend)
        assert out.shape == (0, 4)
    assert swiglu_linear(torch.zeros(0, 8), torch.zeros(4, 8)).shape == (0, 2)
    none = swiglu_linear_fp8(torch.zeros(0, 8), torch.zeros(4, 8), torch.zeros(0))
    assert none.values.shape == (0, 2)


def test_interpreted_on_the_cpu():
    # It multiplies no bfloat16.
    run_interpreted("""
from fp8_cases import mend_interpreter
from linear_cases import *
let_the_interpreter_loop()
mend_interpreter()
check_small("triton", (torch.float16, FP8))
draw = Draw(0, "cpu", torch.float32)
check_rows_stand_alone(["triton", 64, 32, 4, 3, 2, 2], operands(draw, FP8, 300, 64, 64, True))
narrow = operands(draw, FP8, 300, 64, 64, True, narrow=True)
check_rows_stand_alone(["triton", 64, 32, 4, 3, 2, 1], narrow)
""")


def test_every_shape_has_a_configuration_that_fits():
    pytest.importorskip("triton", reason="Triton is not installed")
    from grace.kernels.linear.kernel import triton_candidates
    from grace.kernels.linear.specialized import specialized_candidates

    for rows in (1, 512, 2048, 2049, 16384):
        for gated, residual in ((False, False), (False, True), (True, False)):
            for listed in (triton_candidates, specialized_candidates):
                candidates = listed(rows, gated, residual)
                assert candidates
                assert len({tuple(c) for c in candidates}) == len(candidates)


X, WEIGHT = torch.zeros(3, 8), torch.zeros(4, 8)
X8 = Fp8Rows(X.to(FP8), torch.ones(3))
WEIGHT8 = Fp8Rows(WEIGHT.to(FP8), torch.ones(4))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": X[0]}, r"x must be \[rows, K\]"),
        ({"x": X[:, :0], "weight": WEIGHT[:, :0]}, r"x must be \[rows, K\], K not 0"),
        ({"x": X.int()}, "x must be floating point"),
        ({"weight": WEIGHT[:, :4]}, r"weight must be float32 \[4, 8\]"),
        ({"weight": WEIGHT.half()}, r"weight must be float32 \[4, 8\]"),
        ({"weight": WEIGHT[:0]}, r"weight must be \[N, K\], N not 0"),
        ({"weight": WEIGHT8}, "must both be FP8 rows"),
        ({"x": X8, "weight": Fp8Rows(WEIGHT, torch.ones(4))}, "weight must be float8_e4m3fn"),
        ({"x": Fp8Rows(X8.values, torch.ones(2)), "weight": WEIGHT8}, "the scales of x must be"),
        ({"residual": torch.zeros(3, 5)}, r"residual must be float32 \[3, 4\]"),
        ({"x": X8, "weight": WEIGHT8, "bias": torch.zeros(4)}, r"bias must be bfloat16 \[4\]"),
        ({"backend": "cutlass"}, f"backend must be one of {', '.join(BACKENDS)}"),
        ({"backend": "triton"}, "float32 is none of bfloat16"),
        ({"x": X.half(), "weight": WEIGHT.half(), "backend": "gluon"}, "compute capability 9"),
        ({"x": X[:, :4].half(), "weight": WEIGHT[:, :4].half(), "backend": "triton"}, "8 bytes"),
    ],
)
def test_what_does_not_fit_is_refused(change, message):
    arguments = {"x": X, "weight": WEIGHT} | change
    if change.get("backend") in OURS:
        pytest.importorskip("triton", reason="Triton is not installed")
    with pytest.raises(ValueError, match=message):
        linear(**arguments)


def test_an_odd_gate_is_refused():
    with pytest.raises(ValueError, match=r"gate_up must be \[2 F, K\]"):
        swiglu_linear(X, WEIGHT[:3])
    with pytest.raises(ValueError, match=r"weight must be \[2 F, K\]"):
        interleave_gate_up(WEIGHT[:3])
    with pytest.raises(ValueError, match=r"gate_up must be \[2 F, K\]"):
        gate_bound(WEIGHT[:3])


@pytest.mark.parametrize("scales", [torch.ones(2), torch.ones(3).half(), torch.ones(3, 1)])
def test_scales_that_do_not_fit_are_refused(scales):
    for x, weight in ((X, WEIGHT), (X8, WEIGHT8)):
        with pytest.raises(ValueError, match=r"scales must be float32 \[3\]"):
            swiglu_linear_fp8(x, weight, scales)


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("fp8", [False, True])
def test_the_operation_does_what_it_declares(gated, fp8):
    checks = ("test_schema", "test_faketensor", "test_aot_dispatch_static")
    checks = checks[fp8:]  # the check of the schema multiplies, which FP8 tensors cannot
    x, weight, dtype = (X8, WEIGHT8, torch.bfloat16) if fp8 else (X, WEIGHT, torch.float32)
    x, scales = (x.values, x.scales) if fp8 else (x, None)
    weight, weight_scales = (weight.values, weight.scales) if fp8 else (weight, None)
    residual = None if gated else torch.ones(3, 4, dtype=dtype)
    arguments = (x, scales, weight, weight_scales, residual, None, gated, dtype, "reference")
    torch.library.opcheck(torch.ops.grace.linear.default, arguments, test_utils=checks)


@gpu
@pytest.mark.parametrize("backend", ["cublas", *OURS])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, FP8], ids=str)
def test_random_sizes_on_a_gpu(backend, dtype):
    # Most of the time goes into compilations, and float16's kernels are bfloat16's.
    for seed in range(1 if dtype == torch.float16 else 3):
        check_many(backend, dtype, seed)


@gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, FP8], ids=str)
@pytest.mark.parametrize("gated", [False, True])
def test_every_configuration_and_each_row_alone_on_a_gpu(dtype, gated):
    draw = Draw(0, "cuda", torch.float32)
    for rows in (300, 4096):
        check_every_configuration(draw, dtype, rows, 512, 992, gated)


@gpu
@pytest.mark.parametrize("rows", [300, 4096])
def test_every_configuration_that_stores_fp8_on_a_gpu(rows):
    check_every_narrow_configuration(Draw(0, "cuda", torch.float32), rows, 512, 992)


@gpu
@pytest.mark.parametrize("backend", OURS)
def test_a_graph_replays_on_a_gpu(backend):
    draw = Draw(0, "cuda", torch.bfloat16)
    x, weight, residual = draw.normal(300, 256), draw.normal(512, 256), draw.normal(300, 512)
    with pinned():
        wanted = linear(x, weight, residual, backend=backend)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            got = linear(x, weight, residual, backend=backend)
    for _ in range(100):
        got.fill_(torch.nan)
        graph.replay()
        assert torch.equal(got, wanted)
