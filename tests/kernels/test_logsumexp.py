"""The native and the GPU normaliser against torch in float64."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from interpreted import run_interpreted

from grace.kernels.logsumexp import logsumexp


@given(
    seed=st.integers(0, 2**32),
    rows=st.sampled_from([1, 2, 33]),
    columns=st.sampled_from([1, 2, 15, 16, 17, 63, 512, 1000]),
    scale=st.sampled_from([0.0, 1e-3, 1.0, 30.0, 1e4, 1e38]),
    holes=st.sampled_from([0.0, 0.3, 0.99]),
)
def test_native_equals_reference(seed, rows, columns, scale, holes):
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(rows, columns, generator=generator).clamp(-3, 3) * scale
    logits[torch.rand(logits.shape, generator=generator) < holes] = -torch.inf
    native, reference = (logsumexp(logits, backend) for backend in ("native", "reference"))
    # Far below a float32 step (6e-8), so that rounding a score hides it.
    torch.testing.assert_close(native, reference, rtol=2e-15, atol=4e-15)


def test_special_values():
    inf, nan = torch.inf, torch.nan
    rows = torch.tensor([[-inf, -inf], [inf, 0], [nan, 0], [0, nan], [inf, nan], [-inf, 2.0]])
    for backend in ("native", "reference"):
        found = logsumexp(rows, backend)
        assert found.dtype == torch.float64
        assert found[:2].tolist() == [-inf, inf]
        assert found[2:5].isnan().all()
        assert found[5] == 2.0


def test_a_row_does_not_depend_on_its_neighbours():
    logits = torch.randn(64, 513)
    together = logsumexp(logits)
    assert all(torch.equal(logsumexp(logits[i]), together[i]) for i in range(64))
    assert torch.equal(logsumexp(logits.reshape(4, 16, 513)), together.reshape(4, 16))
    assert torch.equal(logsumexp(logits.t()[:, :5].t()), logsumexp(logits[:5]))


def test_the_order_of_columns_hardly_matters():
    logits = torch.randn(1, 4096)
    shuffled = logits[:, torch.randperm(4096)]
    torch.testing.assert_close(logsumexp(logits), logsumexp(shuffled), rtol=1e-15, atol=2e-15)


@pytest.mark.parametrize(
    ("logits", "backend", "message"),
    [
        (torch.zeros(2, 2, dtype=torch.float64), "auto", "must be float32, bfloat16 or float16"),
        (torch.zeros(2, 0), "auto", "V at least 1"),
        (torch.tensor(1.0), "auto", "V at least 1"),
        (torch.zeros(2, 2), "cuda", "backend must be"),
    ],
)
def test_what_does_not_fit_is_refused(logits, backend, message):
    with pytest.raises(ValueError, match=message):
        logsumexp(logits, backend)


def check_triton(device, sizes):
    """Triton equals the reference far below a float32 step, special values and all."""
    inf, nan = torch.inf, torch.nan
    for vocab in sizes:
        for scale in (0.0, 1.0, 30.0, 1e4, 1e38):
            logits = torch.randn(9, vocab).clamp(-3, 3) * scale
            logits[torch.rand(logits.shape) < 0.3] = -inf
            for dtype in (torch.float32, torch.bfloat16):
                there = logits.to(dtype).to(device)
                found = logsumexp(there, "triton")
                close = {"rtol": 2e-15, "atol": 4e-15}
                torch.testing.assert_close(found, logsumexp(there, "reference"), **close)
                out = torch.full_like(found, nan)
                assert torch.equal(logsumexp(there[:4], "triton", out=out[:4]), found[:4])
                assert torch.equal(logsumexp(there[7:8], "triton"), found[7:8])
                inside = there.new_zeros(9, vocab + 3)[:, 3:].copy_(there)  # aligned otherwise
                assert torch.equal(logsumexp(inside, "triton"), found)
        rows = torch.full((6, vocab), -inf)
        rows[:, 0] = torch.tensor([-inf, inf, nan, 0, inf, -inf])
        rows[:, -1] = torch.tensor([-inf, 0, 0, nan, nan, 2.0])
        if vocab > 1:
            found = logsumexp(rows.to(device), "triton").cpu()
            assert found[:2].tolist() == [-inf, inf]
            assert found[2:5].isnan().all()
            assert found[5] == 2.0


def test_triton_interpreted_on_the_cpu():
    run_interpreted("from test_logsumexp import *; check_triton('cpu', (1, 17, 4097))")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
def test_triton_on_a_gpu():
    check_triton("cuda", (1, 2, 17, 512, 513, 4096, 4097, 8193, 150_001))


def test_a_compiled_graph_holds_it_whole():
    logits = torch.randn(3, 33)
    compiled = torch.compile(logsumexp, fullgraph=True, backend="eager")
    assert torch.equal(compiled(logits), logsumexp(logits))
