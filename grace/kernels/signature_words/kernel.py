"""signature_words in Triton: a thread per signature."""

from __future__ import annotations

from collections.abc import Sequence

import triton
import triton.language as tl
from torch import Tensor


def signature_words_triton(
    columns: Sequence[Tensor], tables: Sequence[Tensor], out: Tensor, block: int = 512
) -> Tensor:
    """Fill and return `out`; the contract is `signature_words`'. Columns of stride 1 are fastest.

    Args:
        columns: uint8, int16 or int32 [G] each, all of one stride.
        block: signatures of one program.
    """
    strides = {column.stride(0) for column in columns}
    if len(strides) != 1:
        raise ValueError(f"columns must share one stride, got {sorted(strides)}")
    if len(out):
        signature_words_kernel[(triton.cdiv(len(out), block),)](
            tuple(columns), tuple(tables), out, len(out), strides.pop(), BLOCK=block, num_warps=4
        )
    return out


@triton.jit
def signature_words_kernel(columns, tables, out, num_signatures, stride, BLOCK: tl.constexpr):
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = row < num_signatures
    word = tl.full((BLOCK,), -1, tl.int32)
    for i in tl.static_range(len(columns)):
        rule = tl.load(columns[i] + row.to(tl.int64) * stride, mask=inside, other=0)
        word &= tl.load(tables[i] + rule.to(tl.int32), mask=inside, other=0)
    tl.store(out + row, word, mask=inside)
