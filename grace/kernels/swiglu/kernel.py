"""swiglu in Triton: a piece of one row a program."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from grace.kernels.tuning import choose

# [columns of one program, warps]; the first is the default
CANDIDATES = [[1024, 4], [512, 2], [2048, 8]]


def swiglu_triton(gate_up: Tensor, interleaved: bool = False) -> Tensor:
    """Return `[..., F]`; the contract is `swiglu`'s. `gate_up` is contiguous."""
    size = gate_up.shape[-1] // 2
    out = gate_up.new_empty((*gate_up.shape[:-1], size))
    if out.numel() == 0:
        return out
    rows = out.numel() // size

    def run(candidate: list[int]) -> None:
        block, warps = candidate
        swiglu_kernel[(rows, triton.cdiv(size, block))](
            gate_up, out, SIZE=size, BLOCK=block, INTERLEAVED=interleaved, num_warps=warps,
        )  # fmt: skip

    shape = (triton.next_power_of_2(rows), size, interleaved, str(gate_up.dtype))
    run(choose("swiglu", shape, CANDIDATES, run, gate_up.device))
    return out


@triton.jit
def swiglu_kernel(gate_up, out, SIZE: tl.constexpr, BLOCK: tl.constexpr, INTERLEAVED: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    first = tl.program_id(1) * BLOCK
    column = first + tl.arange(0, BLOCK)
    mask = column < SIZE
    place = gate_up + row * (2 * SIZE)
    if INTERLEAVED:  # read as they lie, so that neighbours come in one access
        pair = 2 * first + tl.arange(0, 2 * BLOCK)
        both = tl.load(place + pair, mask=pair < 2 * SIZE, other=0.0).to(tl.float32)
        gate, up = tl.split(tl.reshape(both, (BLOCK, 2)))
    else:
        gate = tl.load(place + column, mask=mask, other=0.0).to(tl.float32)
        up = tl.load(place + SIZE + column, mask=mask, other=0.0).to(tl.float32)
    result = gate / (1 + tl.exp(-gate)) * up
    tl.store(out + row * SIZE + column, result.to(out.dtype.element_ty), mask=mask)
