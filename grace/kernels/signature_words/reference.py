"""The specification of signature_words, in plain torch on any device."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor


def signature_words_reference(columns: Sequence[Tensor], tables: Sequence[Tensor]) -> Tensor:
    """Return int32 [G]; the contract is `signature_words`'."""
    words = tables[0][columns[0].long()]
    for column, table in zip(columns[1:], tables[1:], strict=True):
        words &= table[column.long()]
    return words
