"""Rows in FP8: rounded as E4M3 rounds, each by its own scale; Triton agrees; others are refused."""

import numpy as np
import pytest
import torch
from attention_cases import Draw
from fp8_cases import KERNELS, check_many, check_small, inputs, run
from interpreted import run_interpreted

from grace.kernels.fp8_rows import add_rms_norm_fp8, quantize_rows, rms_norm_fp8

E4M3 = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
E4M3 = E4M3[E4M3.isfinite()]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_the_reference_is_within_half_a_step(dtype):
    check_small("reference", dtype)


def test_every_number_of_e4m3_stays_itself():
    rows = quantize_rows(torch.stack([E4M3, -2 * E4M3]))
    assert rows.scales.tolist() == [1, 2]
    assert torch.equal(rows.float(), torch.stack([E4M3, -2 * E4M3]))


def test_a_scale_is_one_product_in_float32():
    """As every backend computes it; a quotient would differ in the last bit now and then."""
    x = torch.randn(1000, 3, generator=torch.Generator().manual_seed(0))
    product = x.abs().amax(1).numpy() * np.float32(1 / 448)
    rows = quantize_rows(x)
    assert torch.equal(rows.scales, torch.from_numpy(product))
    assert (rows.values.float().abs().amax(1) == 448).all()


def test_halves_go_to_even():
    x = torch.tensor([[448.0, 1.0625, 1.1875, -17, -19, 1.5 * 2**-9, 2**-10]])
    wanted = [448, 1, 1.25, -16, -20, 2 * 2**-9, 0]
    assert quantize_rows(x).float().tolist() == [wanted]


def test_tiny_huge_and_zero_rows_keep_their_numbers():
    x = torch.tensor([[1e-40, -2e-42], [3e38, -1e38], [0, -0.0], [1e-37, 1e-38]])
    rows = quantize_rows(x)
    assert rows.scales[2] == 1
    assert rows.scales[0] == 2.0**-126
    torch.testing.assert_close(rows.float(), x, rtol=1 / 16, atol=2.0**-136)


def test_what_a_product_makes_of_tiny_huge_and_zero_rows_has_a_scale():
    x = torch.tensor([[1.0, -2], [0, 0], [1e-30, 1e-30], [3e38, 1]])
    weight = torch.tensor([1e-10, 0])
    rows = rms_norm_fp8(x, weight, 1e-6, gate_bound=4.0)
    scales = rows.gated_scales.tolist()
    assert scales[1] == 1
    assert scales[2] == 2.0**-126
    assert scales[0] == pytest.approx(0.4e-20 * 4 / 448, rel=0.1)
    huge = rms_norm_fp8(x, torch.tensor([1e22, 1e22]), 1e-6, gate_bound=4.0).gated_scales
    assert huge[0].isinf()
    assert huge[1] == 1


def test_a_row_of_nan_or_infinity_is_nan_and_alone():
    x = torch.randn(4, 8, generator=torch.Generator().manual_seed(0))
    clean = quantize_rows(x)
    x[1, 3], x[2, 0] = torch.nan, torch.inf
    rows = quantize_rows(x)
    assert rows.float()[1:3].isnan().all()
    for row in (0, 3):
        assert torch.equal(rows.float()[row], clean.float()[row])


def test_interpreted_on_the_cpu():
    run_interpreted("from fp8_cases import *; mend_interpreter(); check_small('triton')")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
@pytest.mark.parametrize("seed", range(8))
def test_random_sizes_on_a_gpu(seed):
    dtypes = (torch.bfloat16, torch.float32, torch.bfloat16, torch.float16)
    check_many("cuda", dtypes[seed % 4], seed)


@pytest.mark.parametrize("name", KERNELS)
def test_an_operation_does_what_it_declares(name):
    tensors = inputs(name, Draw(0, "cpu", torch.float32), 3, 8)
    eps = () if name == "quantize_rows" else (1e-6,)
    checks = ("test_schema", "test_faketensor", "test_aot_dispatch_static")
    operation = getattr(torch.ops.grace, name).default
    torch.library.opcheck(operation, (*tensors, *eps, "reference"), test_utils=checks)
    if eps:
        torch.library.opcheck(operation, (*tensors, *eps, "reference", 2.0), test_utils=checks)


@pytest.mark.parametrize("name", KERNELS)
def test_a_compiled_call_is_one_graph(name):
    tensors = inputs(name, Draw(0, "cpu", torch.bfloat16), 3, 8)

    def rows(*tensors):
        rows = run(name, tensors, bound=2.0)[0]
        scales = rows.scales if rows.gated_scales is None else rows.gated_scales
        return rows.float() * scales[:, None]

    compiled = torch.compile(rows, backend="aot_eager", fullgraph=True)
    assert torch.equal(compiled(*tensors), rows(*tensors))


def test_no_rows_are_no_rows():
    assert quantize_rows(torch.empty(0, 8)).float().shape == (0, 8)


X, WEIGHT = torch.zeros(2, 8), torch.ones(8)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: quantize_rows(X.int()), "x must be floating point"),
        (lambda: quantize_rows(X[0]), r"x must be \[rows, K\]"),
        (lambda: quantize_rows(X[:, :0]), "K at least 1"),
        (lambda: quantize_rows(X, "cuda"), "backend must be"),
        (lambda: quantize_rows(X.double(), "triton"), "takes no float64"),
        (lambda: rms_norm_fp8(X, WEIGHT[:7], 1e-6), r"weight must be float32 \[8\]"),
        (lambda: rms_norm_fp8(X, WEIGHT.half(), 1e-6), r"weight must be float32 \[8\]"),
        (lambda: add_rms_norm_fp8(X, X[:1], WEIGHT, 1e-6), r"residual must be float32 \[2, 8\]"),
    ],
)
def test_what_does_not_fit_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()
