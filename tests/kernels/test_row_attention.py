"""Attention within rows: Triton equals the reference, gradients too; dropout does what it says."""

import pytest
import torch
from interpreted import run_interpreted

from grace.kernels.row_attention import Rows, row_attention

SHAPES = [
    [(4, 4, 20)],
    [(13, 13, 5), (37, 37, 2), (81, 81, 1)],
    [(4, 13, 6), (4, 37, 3), (4, 128, 1)],
]


def case(shapes, own, device="cpu", dtype=torch.float32, heads=2, dim=16):
    """Return x, memory, bias and pieces of (queries, keys, rows)."""
    draw = torch.Generator().manual_seed(0)

    def normal(*shape):
        tensor = (torch.randn(shape, generator=draw) / 2).to(device, dtype)
        return tensor.requires_grad_()

    pieces = []
    for queries, keys, rows in shapes:
        seen = torch.rand(rows, keys, generator=draw) < 0.7
        seen[:, 0] = True
        pieces.append(Rows(queries, seen.to(device)))
    tokens = sum(len(piece.keys) * piece.queries for piece in pieces)
    if own:
        longest = max(keys for _, keys, _ in shapes)
        return normal(tokens, 3 * heads * dim), None, normal(heads, longest, longest), pieces
    held = sum(piece.keys.numel() for piece in pieces)
    return normal(tokens, heads * dim), normal(held, 2 * heads * dim), None, pieces


def run(given, backend, dropout=0.0, heads=2, seed=0):
    """Return the output and all gradients."""
    x, memory, bias, pieces = given
    torch.manual_seed(seed)
    out = row_attention(x, memory, bias, pieces, heads, dropout, backend)
    leaves = [tensor for tensor in (x, memory, bias) if tensor is not None]
    pull = torch.linspace(-1, 1, out.numel(), device=out.device, dtype=out.dtype).view(out.shape)
    return [out.detach(), *torch.autograd.grad(out, leaves, pull)]


def check_triton(device="cpu", dtype=torch.float32, dim=16, tolerance=1e-5):
    for shapes in SHAPES:
        given = case(shapes, shapes[0][0] == shapes[0][1], device, dtype, dim=dim)
        for mine, wanted in zip(run(given, "triton"), run(given, "reference"), strict=True):
            torch.testing.assert_close(mine, wanted, rtol=tolerance, atol=tolerance)


def check_dropout(device="cpu"):
    """Draws differ from seed to seed and are right on average; gradients are of what was drawn."""
    x, _, bias, pieces = case([(8, 8, 2), (20, 20, 1)], True, device)
    given = x, None, bias, pieces
    first, again, other = (run(given, "triton", 0.4, seed=seed) for seed in (0, 0, 1))
    for mine, same in zip(first, again, strict=True):
        assert torch.equal(mine, same)
    assert not torch.equal(first[0], other[0])
    draws = torch.stack([run(given, "triton", 0.4, seed=seed)[0] for seed in range(30)])
    error = draws.mean(0) - run(given, "triton")[0]
    assert (error.abs() < 6 * draws.std(0) / 30**0.5 + 1e-6).all()
    step = 1e-3 * torch.randn(x.shape, generator=torch.Generator().manual_seed(1)).to(device)
    plus, minus = (
        run(((x.detach() + sign * step).requires_grad_(), None, bias, pieces), "triton", 0.4)[0]
        for sign in (1, -1)
    )
    pull = torch.linspace(-1, 1, plus.numel(), device=device).view(plus.shape)
    torch.testing.assert_close(
        ((plus - minus) * pull).sum() / 2, (first[1] * step).sum(), rtol=1e-2, atol=1e-4
    )


def test_interpreted_on_the_cpu():
    run_interpreted("""
from fp8_cases import mend_interpreter
from test_row_attention import *
mend_interpreter()
check_triton()
check_dropout()
""")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
def test_on_a_gpu():
    check_triton("cuda", torch.float32, tolerance=1e-4)
    check_triton("cuda", torch.bfloat16, dim=64, tolerance=5e-2)
    check_dropout("cuda")


def test_other_sizes_are_the_references():
    given = case([(2, 129, 1)], False)
    assert run(given, "auto")[0].shape == (2, 32)
    with pytest.raises(ValueError, match="at most 128 keys"):
        run(given, "triton")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda x, m, b, p: (x.int(), m, b, p, 2), "x must be floating point"),
        (lambda x, m, b, p: (x, m, b, p, 7), r"x must be \[T, 3 \* 7 \* D\]"),
        (lambda x, m, b, p: (x, x, b, p, 2), r"memory must be \[S, 192\]"),
        (lambda x, m, b, p: (x, m, b, p * 2, 2), "pieces must hold 12 queries and 12 keys"),
        (lambda x, m, b, p: (x, m, b, p, 2, 0.0, "cuda"), "backend must be"),
    ],
)
def test_what_does_not_fit_is_refused(change, message):
    with pytest.raises(ValueError, match=message):
        row_attention(*change(*case([(4, 4, 3)], True)))
