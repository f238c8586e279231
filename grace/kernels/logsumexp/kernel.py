"""logsumexp in Triton: a row's terms and their sum in float64, the order of the sum fixed by V.

How many rows there are changes nothing about the sum of one, so a row's bits do not depend on the
batch. An H200 computes exp in float64 fast enough to stay near the time it takes to read logits.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor


def logsumexp_triton(logits: Tensor, out: Tensor) -> Tensor:
    """Fill and return `out`, float64 [rows], from [rows, V]; the contract is `logsumexp`'s."""
    rows, vocab = logits.shape
    if rows == 0:
        return out
    block = min(triton.next_power_of_2(vocab), 4096)
    tile = max(1, 1024 // block)
    row_sums[(triton.cdiv(rows, tile),)](
        logits, out, rows, vocab, logits.stride(0),
        ROWS=tile, BLOCK=block, ONE_TURN=vocab <= block, num_warps=8 if block > 2048 else 4,
    )  # fmt: skip
    return out


@triton.jit
def shift_of(largest):
    """What is taken from a row before exp: its largest logit, or 0 where that is infinite."""
    return tl.where(tl.abs(largest) < float("inf"), largest, 0.0).to(tl.float64)


# One compilation for all rows of V logits, wherever they lie: another would sum in another order.
@triton.jit(do_not_specialize=("num_rows", "stride"), do_not_specialize_on_alignment=("logits",))
def row_sums(
    logits, out, num_rows, vocab, stride,
    ROWS: tl.constexpr, BLOCK: tl.constexpr, ONE_TURN: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside = (row < num_rows)[:, None]
    start = logits + row.to(tl.int64)[:, None] * stride
    column = tl.arange(0, BLOCK)[None, :]
    if ONE_TURN:
        value = tl.load(start + column, mask=inside & (column < vocab), other=float("-inf"))
        value = value.to(tl.float32)
        shift = shift_of(tl.max(value, 1))
        total = tl.sum(tl.exp(value.to(tl.float64) - shift[:, None]), 1)
    else:
        largest = tl.full((ROWS,), float("-inf"), tl.float32)
        total = tl.zeros((ROWS,), tl.float64)
        begin = 0
        while begin < vocab:
            asked = inside & (begin + column < vocab)
            value = tl.load(start + begin + column, mask=asked, other=float("-inf"))
            value = value.to(tl.float32)
            larger = tl.maximum(largest, tl.max(value, 1))
            # Before the first finite logit the sum is 0 or NaN, and stays so.
            scale = tl.where(
                largest == float("-inf"), 0.0, tl.exp(shift_of(largest) - shift_of(larger))
            )
            largest = larger
            terms = tl.exp(value.to(tl.float64) - shift_of(largest)[:, None])
            total = total * scale + tl.sum(terms, 1)
            begin += BLOCK
        shift = shift_of(largest)
    tl.store(out + row, shift + tl.log(total), mask=row < num_rows)
