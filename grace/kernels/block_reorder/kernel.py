"""block_reorder in Triton: a thread per entry of the new table."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor


def block_reorder_triton(
    table: Tensor,
    parents: Tensor,
    t: int,
    first_block: int,
    own: Tensor | None,
    block: int = 512,
) -> Tensor:
    """Return int32 `[B * M, L]`; the contract is `block_reorder`'s.

    Args:
        block: entries of one program.
    """
    batch, beams = parents.shape
    max_length = table.shape[1]
    out = table.new_empty((batch * beams, max_length))
    if out.numel():
        block_reorder_kernel[(triton.cdiv(out.numel(), block),)](
            table, parents, own, out, out.numel(), beams, table.shape[0] // batch, t, first_block,
            L=max_length, BLOCK=block, num_warps=4,
        )  # fmt: skip
    return out


@triton.jit(do_not_specialize=["t", "first_block"])
def block_reorder_kernel(
    table, parents, own, out, num_entries, beams, beams_before, t, first_block,
    L: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    entry = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = entry < num_entries
    row = entry // L
    position = entry % L
    parent = tl.load(parents + row, mask=inside, other=0)
    source = (row // beams * beams_before + parent) * L + position
    inherited = tl.load(table + source, mask=inside & (position < t), other=-1)
    ours = row
    if own is not None:
        ours = tl.load(own + row, mask=inside & (position == t), other=0).to(tl.int32)
    tl.store(out + entry, tl.where(position == t, first_block + ours, inherited), mask=inside)
