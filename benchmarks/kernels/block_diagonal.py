"""The paper's coalesced tile, built as it describes it (GRACE, 4.2), to measure ours against.

G rows share a tile `[G, G * T]` on the matrix units, and a mask keeps rows apart. A row's NaN
reaches its neighbours (0 times NaN is NaN), which is why it is no kernel of the package.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from grace.kernels.tuning import choose

CANDIDATES = [[16, 4], [16, 2], [32, 4]]  # [rows of a tile, warps]


def block_diagonal_attention(query: Tensor, cache: Tensor, t: int) -> Tensor:
    """Let each row attend to positions 0..t of its own dense cache; D a power of two.

    Args:
        query: `[rows, H, D]`, contiguous.
        cache: `[rows, L, 2, H, D]`, contiguous.
        t: the newest position.

    Returns:
        `[rows, H, D]`.
    """
    rows, num_heads, head_dim = query.shape
    out = torch.empty_like(query)

    def run(candidate: list[int]) -> None:
        tile, warps = candidate
        kernel[(triton.cdiv(rows, tile), num_heads)](
            query, cache, out, rows, head_dim**-0.5 * 1.4426950408889634,
            L=cache.shape[1], H=num_heads, D=head_dim, LENGTH=t + 1,
            SLOTS=triton.next_power_of_2(t + 1), G=tile, num_warps=warps,
        )  # fmt: skip

    shape = (rows, num_heads, head_dim, t, cache.shape[1])
    run(choose("block_diagonal", shape, CANDIDATES, run, query.device))
    return out


@triton.jit
def kernel(
    query, cache, out, num_rows, scale,
    L: tl.constexpr, H: tl.constexpr, D: tl.constexpr, LENGTH: tl.constexpr,
    SLOTS: tl.constexpr, G: tl.constexpr,
):  # fmt: skip
    first = tl.program_id(0).to(tl.int64) * G
    row = tl.arange(0, G)
    head = tl.program_id(1) * D
    column = tl.arange(0, D)
    place = (first + row)[:, None] * (H * D) + head + column[None, :]
    mask = (first + row < num_rows)[:, None]
    q = tl.load(query + place, mask=mask, other=0.0)
    slot = tl.arange(0, G * SLOTS)
    owner, position = slot // SLOTS, slot % SLOTS
    filled = (position < LENGTH) & (first + owner < num_rows)
    block = ((first + owner) * L + position) * (2 * H * D)
    source = cache + block[:, None] + head + column[None, :]
    k = tl.load(source, mask=filled[:, None], other=0.0)
    v = tl.load(source + H * D, mask=filled[:, None], other=0.0)
    scores = tl.dot(q, tl.trans(k)) * scale
    own = (owner[None, :] == row[:, None]) & (position < LENGTH)[None, :]
    scores = tl.where(own, scores, float("-inf"))
    shares = tl.exp2(scores - tl.max(scores, 1)[:, None])
    attended = tl.dot(shares.to(v.dtype), v) / tl.sum(shares, 1)[:, None]
    tl.store(out + place, attended.to(out.dtype.element_ty), mask=mask)
