"""Signatures, one rule per attribute and a window, decided for a whole batch."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from grace.kernels.signature_words.reference import signature_words_reference
from grace.kernels.words import check_dtypes, choose_backend, output


def signature_words(
    columns: Sequence[Tensor],
    tables: Sequence[Tensor],
    out: Tensor | None = None,
    backend: str = "auto",
    workers: int | None = None,
) -> Tensor:
    """AND the words of the rules of each signature.

    Args:
        columns: at least one; int32 [G] each, what the signatures say of one attribute or the
            window. On the CPU the columns of one C-contiguous matrix are read fastest. Triton takes
            uint8 and int16 too.
        tables: as many; int32 words that the numbers of the same column point into.
        out: int32 [G] to write to.
        backend: `auto`, `native`, `triton` or `reference`.
        workers: threads of the native backend; by default as many as torch uses.

    Returns:
        int32 [G], the requests that each signature accepts.

    Raises:
        ValueError: if numbers of columns, dtypes or the backend do not fit.
    """
    if len(columns) == 0 or len(columns) != len(tables):
        raise ValueError(f"{len(columns)} columns need as many tables, got {len(tables)}")
    for table in tables:
        check_dtypes((torch.int32,), tables=table)
    out = output(out, len(columns[0]), tables[0].device)
    chosen = choose_backend(backend, tables[0].device)
    if chosen == "triton":
        from grace.kernels.signature_words.kernel import signature_words_triton

        return signature_words_triton(columns, tables, out)
    if chosen == "reference":
        return out.copy_(signature_words_reference(columns, tables))
    from grace import _native

    for column in columns:
        check_dtypes((torch.int32,), columns=column)
    _native.signature_words(
        [column.numpy() for column in columns],
        [table.numpy() for table in tables],
        out.numpy(),
        workers or torch.get_num_threads(),
    )
    return out
