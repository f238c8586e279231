"""Which token of the model stands for which code of which level."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from grace.errors import ConfigError, ModelError

if TYPE_CHECKING:
    from grace.index import Index

PADDING = 0
"""Pads inputs, and is what the decoder starts from, as in every T5."""
END = 1
"""Ends every input; never written."""


@dataclasses.dataclass(frozen=True)
class TokenMap:
    """Tokens of users and codes.

    `TokenMap.of` lays them out: 0 padding and start, 1 the end of an input, then users, then a
    block of codes per level. A model made elsewhere may have them anywhere.

    Attributes:
        starts: L tokens, of code 0 of each level.
        sizes: L counts, the codes of each level.
        num_users: buckets of users; 0 for a model that reads no user.
        user_start: the token of bucket 0.
    """

    starts: tuple[int, ...]
    sizes: tuple[int, ...]
    num_users: int = 0
    user_start: int = 2

    def __post_init__(self) -> None:
        for name in ("starts", "sizes"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        values = (*self.starts, *self.sizes, self.num_users, self.user_start)
        if any(type(value) is not int or value < 0 for value in values):
            raise ConfigError(f"tokens: expected integers of at least 0, got {values}")
        if not self.sizes or len(self.starts) != len(self.sizes) or min(self.sizes) < 1:
            raise ConfigError(
                "tokens: starts and sizes must have an entry per level, sizes of at least 1, got "
                f"{self.starts} and {self.sizes}"
            )
        blocks = sorted(
            [*zip(self.starts, self.sizes, strict=True), (self.user_start, self.num_users), (0, 2)]
        )
        blocks = [block for block in blocks if block[1]]
        for (start, size), (following, _) in itertools.pairwise(blocks):
            if start + size > following:
                raise ConfigError(
                    f"tokens: the block from {start} of {size} reaches into the one from "
                    f"{following}; 0 is padding, 1 the end"
                )

    @classmethod
    def of(cls, sizes: Sequence[int], num_users: int = 0) -> TokenMap:
        """Lay out levels of so many codes each, one after the other behind the users."""
        starts = itertools.accumulate(sizes[:-1], initial=2 + num_users)
        return cls(tuple(starts), tuple(sizes), num_users)

    @property
    def num_levels(self) -> int:
        """L."""
        return len(self.sizes)

    @property
    def num_codes(self) -> int:
        """V, the most codes of a level."""
        return max(self.sizes)

    @property
    def vocab_size(self) -> int:
        """Tokens that a model must have at least."""
        codes = [start + size for start, size in zip(self.starts, self.sizes, strict=True)]
        return max(2, self.user_start + self.num_users, *codes)

    def tokens(self, sids: Tensor) -> Tensor:
        """Return int64 `[..., L]`, the tokens of SIDs `[..., L]`, on their device."""
        return sids.long() + torch.tensor(self.starts, device=sids.device)

    def user_tokens(self, users: Tensor) -> Tensor:
        """Return the tokens of users, int64; a bucket is the user's number modulo `num_users`."""
        return users % self.num_users + self.user_start

    def check(self, index: Index) -> None:
        """Raise ModelError if the index has codes that are no tokens."""
        if index.num_levels != self.num_levels:
            raise ModelError(
                f"the model writes SIDs of {self.num_levels} tokens, the index holds SIDs of "
                f"{index.num_levels}; train on this index"
            )
        bounds = index.trie.level_offsets.numpy()
        tokens = index.trie.child_tokens.numpy()
        for level, size in enumerate(self.sizes):
            # Entry e leads to node e + 1.
            largest = int(np.max(tokens[bounds[level + 1] - 1 : bounds[level + 2] - 1]))
            if largest >= size:
                raise ModelError(
                    f"the model has {size} codes at level {level}, the index's largest is "
                    f"{largest}; train on this index"
                )


def shifted(tokens: Tensor, start: int = PADDING) -> Tensor:
    """Return the decoder's input `[..., L]` for the tokens of SIDs: `start`, then all but one."""
    return torch.cat([torch.full_like(tokens[..., :1], start), tokens[..., :-1]], -1)


def assembled(
    tokens: Tensor, lengths: Tensor, max_items: int, users: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Lay out the encoder's inputs: the user, the items' tokens oldest first, the end, padding.

    The shapes follow from the arguments' shapes alone, and everything happens on their device.

    Args:
        tokens: int64 `[B, n, L]`, of n items a request, the first `lengths` of which count.
        lengths: int64 `[B]`, at most n.
        max_items: at least n; room that the inputs have.
        users: int64 `[B]`, tokens; `PADDING` for a request without one, whose place is masked.
            None for a model that reads no user.

    Returns:
        input_ids int64 and mask bool, `[B, S]`; S is `max_items * L`, one for the end and one for
        the user where the model reads it.
    """
    batch, _, num_levels = tokens.shape
    first = 0 if users is None else 1
    ids = tokens.new_full((batch, first + max_items * num_levels + 1), PADDING)
    ids[:, first : first + tokens[0].numel()] = tokens.flatten(1)
    if users is not None:
        ids[:, 0] = users
    end = (first + lengths * num_levels)[:, None]
    place = torch.arange(ids.shape[1], device=ids.device)
    ids = torch.where(place < end, ids, torch.where(place == end, END, PADDING))
    return ids, (place <= end) & ((place > 0) | (ids != PADDING))
