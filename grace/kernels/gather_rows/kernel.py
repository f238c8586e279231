"""gather_rows in Triton: a row of both tables a program."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

BLOCK = 1024  # columns of one load


def gather_rows_triton(
    first: Tensor, second: Tensor, rows: Tensor, offset: int
) -> tuple[Tensor, Tensor]:
    """Return `[R, X]` and `[R, Y]`; the contract is `gather_rows`'."""
    out_first = first.new_empty(len(rows), first.shape[1])
    out_second = second.new_empty(len(rows), second.shape[1])
    if len(rows):
        gather_rows_kernel[(len(rows),)](
            first, second, rows, out_first, out_second, offset,
            FIRST=first.shape[1], SECOND=second.shape[1], BLOCK=BLOCK, num_warps=4,
        )  # fmt: skip
    return out_first, out_second


@triton.jit(do_not_specialize=["offset"])
def gather_rows_kernel(
    first, second, rows, out_first, out_second, offset,
    FIRST: tl.constexpr, SECOND: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    source = tl.maximum(tl.load(rows + row) - offset, 0)
    # Everything is asked for before anything is waited for.
    left = load_row(first + source * FIRST, FIRST, BLOCK)
    right = load_row(second + source * SECOND, SECOND, BLOCK)
    store_row(out_first + row * FIRST, left, FIRST, BLOCK)
    store_row(out_second + row * SECOND, right, SECOND, BLOCK)


@triton.jit
def load_row(place, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    held = ()
    for start in tl.static_range(0, SIZE, BLOCK):
        column = start + tl.arange(0, BLOCK)
        held = held + (tl.load(place + column, mask=column < SIZE, other=0.0),)  # noqa: RUF005
    return held


@triton.jit
def store_row(place, held, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    for piece in tl.static_range(len(held)):
        column = piece * BLOCK + tl.arange(0, BLOCK)
        tl.store(place + column, held[piece], mask=column < SIZE)
