"""Re-ordering of paged beams: the tables of block ids move, keys and values stay (GRACE, 2.4)."""

from __future__ import annotations

import torch
from torch import Tensor

from grace.kernels.backends import form, runs_plain, triton_or_reference
from grace.kernels.block_reorder.reference import block_reorder_reference


def start_blocks(rows: int, max_length: int, device: torch.device | str) -> Tensor:
    """Return the table of step 0: row r keeps its first token in block r.

    Args:
        rows: B * M, 1 beam a request as a rule.
        max_length: L.
        device: where the table is to lie.

    Returns:
        int32 `[rows, L]`; -1 where no block is given yet.
    """
    table = torch.full((rows, max_length), -1, dtype=torch.int32, device=device)
    table[:, 0] = torch.arange(rows, dtype=torch.int32, device=device)
    return table


def block_reorder(
    table: Tensor,
    parents: Tensor,
    t: int,
    first_block: int,
    backend: str = "auto",
    own: Tensor | None = None,
) -> Tensor:
    """Give each beam of step t the blocks of its parent's prefix and a block of its own.

    Beam m of request b is row `b * M + m`. Its block for position t is `first_block + b * M + m`,
    so blocks never collide where `first_block` is the number of rows of all steps before t, and a
    pool with as many blocks as all steps have rows never runs short. One table serves all layers,
    each of which has a pool.

    With `own` its block is `first_block + own[b, m]` instead, such as a token's.

    Args:
        table: int32 `[B * M_before, L]`, contiguous, of the step before. Not changed.
        parents: int64 `[B, M]`, which row of its request in the step before each beam continues;
            0 for a dead beam.
        t: the step, from 1 to L - 1.
        first_block: the first block of step t.
        backend: `auto` (Triton on CUDA, else the reference), `triton` or `reference`.
        own: int64 `[B, M]`, not negative, or None.

    Returns:
        int32 `[B * M, L]`; entries past t are -1.

    Raises:
        ValueError: if shapes, dtypes, devices, t or the backend do not fit.
    """
    if table.dtype != torch.int32 or table.ndim != 2 or not table.is_contiguous():
        raise ValueError(f"table must be contiguous int32 [rows, L], got {form(table)}")
    if parents.dtype != torch.int64 or parents.ndim != 2 or parents.device != table.device:
        raise ValueError(
            f"parents must be int64 [B, M] on {table.device}, got {form(parents)} "
            f"on {parents.device}"
        )
    if parents.shape[0] == 0 or table.shape[0] % parents.shape[0]:
        raise ValueError(
            f"table must have a multiple of the {parents.shape[0]} requests as rows, "
            f"got {form(table)}"
        )
    if not 1 <= t < table.shape[1]:
        raise ValueError(f"t must be from 1 to {table.shape[1] - 1}, got {t}")
    if not 0 <= first_block < 2**31 - parents.numel():
        raise ValueError(f"blocks must be from 0 to 2^31 - 1, got first_block {first_block}")
    if own is not None and (own.dtype != torch.int64 or own.shape != parents.shape):
        raise ValueError(f"own must be int64 {list(parents.shape)}, got {form(own)}")
    chosen = triton_or_reference(backend, table)
    if runs_plain(chosen):
        return block_reorder_reference(table, parents, t, first_block, own)
    return torch.ops.grace.block_reorder(table, parents, t, first_block, chosen, own)


@torch.library.custom_op("grace::block_reorder", mutates_args=())
def _block_reorder(
    table: Tensor, parents: Tensor, t: int, first_block: int, backend: str, own: Tensor | None
) -> Tensor:
    if backend == "reference":
        return block_reorder_reference(table, parents, t, first_block, own)
    from grace.kernels.block_reorder.kernel import block_reorder_triton

    own = None if own is None else own.contiguous()
    return block_reorder_triton(table, parents.contiguous(), t, first_block, own)


@_block_reorder.register_fake
def _(
    table: Tensor, parents: Tensor, t: int, first_block: int, backend: str, own: Tensor | None
) -> Tensor:
    return table.new_empty((parents.numel(), table.shape[1]))
