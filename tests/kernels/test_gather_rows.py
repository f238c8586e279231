"""Rows of two tables: the reference by hand, Triton the same bits, what is refused."""

import pytest
import torch
from attention_cases import Draw, poisoned
from interpreted import run_interpreted

from grace.kernels.gather_rows import gather_rows

SMALL = ((1, 1, 1, 1), (5, 48, 33, 7), (9, 8, 1030, 3))
SIZES = (*SMALL, (300, 1024, 2048, 70))


def check(draw, backend, sizes=SIZES):
    """Rows of `[table, left]` and `[table, right]`, some before the first."""
    for table, left, right, count in sizes:
        first, second = draw.normal(table, left), draw.normal(table, right)
        rows = draw.integers(-1, 7 + table, count)
        with poisoned():
            got = gather_rows(first, second, rows, 7, backend)
        wanted = [max(row - 7, 0) for row in rows.tolist()]
        assert torch.equal(got[0], first[wanted])
        assert torch.equal(got[1], second[wanted])
        none = gather_rows(first, second, rows[:0], 7, backend)
        assert [len(part) for part in none] == [0, 0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_reference_gathers(dtype):
    check(Draw(0, "cpu", dtype), "reference")
    check(Draw(1, "cpu", dtype), "auto")


def test_interpreted_on_the_cpu():
    run_interpreted("""
from test_gather_rows import *
check(Draw(0, "cpu", torch.float32), "triton", SMALL)
""")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_gpu_gathers(dtype):
    check(Draw(0, "cuda", dtype), "triton")


def test_the_operation_does_what_it_declares():
    checks = ("test_schema", "test_faketensor", "test_aot_dispatch_static")
    arguments = (torch.ones(3, 4), torch.ones(3, 2), torch.tensor([5, 2]), 3, "reference")
    torch.library.opcheck(torch.ops.grace.gather_rows.default, arguments, test_utils=checks)


TABLE, ROWS = torch.zeros(3, 4), torch.zeros(2, dtype=torch.int64)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((TABLE[0], TABLE, ROWS), r"first must be contiguous \[n, columns"),
        ((TABLE, TABLE[:0], ROWS), r"second must be contiguous \[n, columns"),
        ((TABLE, TABLE[:, :2], ROWS), r"second must be contiguous \[n, columns"),
        ((TABLE, TABLE[:2], ROWS), "must be alike"),
        ((TABLE, TABLE.half(), ROWS), "must be alike"),
        ((TABLE, TABLE, ROWS.int()), r"rows must be int64 \[R\]"),
        ((TABLE, TABLE, ROWS[None]), r"rows must be int64 \[R\]"),
        ((TABLE, TABLE, ROWS, 0, "cuda"), "backend must be"),
    ],
)
def test_what_does_not_fit_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        gather_rows(*arguments)
