"""The norm without weights and its gradient equal torch's."""

import pytest
import torch
from interpreted import run_interpreted

from grace.kernels.unit_norm import unit_norm


def check_triton(device="cpu", dtype=torch.float32, tolerance=1e-5):
    draw = torch.Generator().manual_seed(0)
    for shape in ((1, 1), (37, 24), (5, 128), (3, 3000)):
        x, pull = (torch.randn(shape, generator=draw).to(device, dtype) for _ in range(2))
        found = []
        for backend in ("triton", "reference"):
            leaf = x.clone().requires_grad_()
            normed = unit_norm(leaf, 1e-3, backend)
            found.append((normed.detach(), *torch.autograd.grad(normed, leaf, pull)))
        for mine, wanted in zip(*found, strict=True):
            torch.testing.assert_close(mine, wanted, rtol=tolerance, atol=tolerance)


def test_interpreted_on_the_cpu():
    run_interpreted("from test_unit_norm import check_triton; check_triton()")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
def test_on_a_gpu():
    check_triton("cuda")
    check_triton("cuda", torch.bfloat16, 5e-2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((torch.zeros(2, 3).int(), 1e-6), "x must be floating point"),
        ((torch.zeros(2, 3, 4), 1e-6), r"x must be \[T, d\]"),
        ((torch.zeros(2, 3), 1e-6, "cuda"), "backend must be"),
    ],
)
def test_what_does_not_fit_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        unit_norm(*arguments)
