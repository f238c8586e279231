"""RMSNorm and its residual sum equal torch's own; what does not fit is refused."""

import pytest
import torch
import torch.nn.functional as F
from attention_cases import Draw

from grace.kernels.rms_norm import add_rms_norm, rms_norm


@pytest.mark.parametrize("shape", [(1, 1), (3, 63), (2, 5, 64)])
def test_it_is_torchs_norm_of_the_sum(shape):
    draw = Draw(0, "cpu", torch.float32)
    x, residual, weight = draw.normal(*shape), draw.normal(*shape), draw.normal(shape[-1])
    normed, total = add_rms_norm(x, residual, weight, 1e-5)
    assert torch.equal(total, x + residual)
    torch.testing.assert_close(normed, F.rms_norm(total, shape[-1:], weight, 1e-5))
    torch.testing.assert_close(rms_norm(x, weight, 0.1), F.rms_norm(x, shape[-1:], weight, 0.1))


@pytest.mark.parametrize("backend", ["reference", "native"])
def test_rows_of_zeros_stay_zeros(backend):
    zeros = torch.zeros(2, 8)
    assert torch.equal(rms_norm(zeros, torch.ones(8), 1e-6, backend), zeros)


@pytest.mark.parametrize("shape", [(0, 3), (1, 1), (3, 63), (2, 5, 64), (7, 129)])
def test_native_equals_the_reference(shape):
    draw = Draw(1, "cpu", torch.float32)
    x, weight = draw.normal(*shape), draw.normal(shape[-1])
    wanted = rms_norm(x, weight, 1e-3)
    torch.testing.assert_close(rms_norm(x, weight, 1e-3, "native"), wanted)
    turned = x.transpose(0, -1).contiguous().transpose(0, -1)
    assert torch.equal(
        rms_norm(turned, weight, 1e-3, "native"), rms_norm(x, weight, 1e-3, "native")
    )


X, WEIGHT = torch.zeros(2, 8), torch.ones(8)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: rms_norm(X.int(), WEIGHT, 1e-6), "x must be floating point"),
        (lambda: rms_norm(X[:, :0], WEIGHT[:0], 1e-6), "d at least 1"),
        (lambda: rms_norm(X, WEIGHT[:7], 1e-6), r"weight must be float32 \[8\]"),
        (lambda: rms_norm(X, WEIGHT.half(), 1e-6), r"weight must be float32 \[8\]"),
        (lambda: add_rms_norm(X, X[:1], WEIGHT, 1e-6), r"residual must be float32 \[2, 8\]"),
        (lambda: rms_norm(X, WEIGHT, 1e-6, "cuda"), "backend must be"),
        (lambda: rms_norm(X.half(), WEIGHT.half(), 1e-6, "native"), "native takes float32 on a C"),
        (lambda: rms_norm(X.to("meta"), WEIGHT.to("meta"), 1e-6, "native"), "on a CPU"),
    ],
)
def test_what_does_not_fit_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()
