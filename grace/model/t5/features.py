"""What a T5 reads of a request: the items of its history, and who the user is."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from grace.model.history import check_history, history_of
from grace.model.t5.token_map import PADDING, TokenMap, assembled

if TYPE_CHECKING:
    from grace.index import Index


@dataclasses.dataclass(frozen=True)
class HistoryFeatures:
    """Features `{"history": [ad ids, oldest first], "user"?: number}`, both optional.

    Attributes:
        tokens: which token is which code.
        max_items: of a history that are read, the newest.
    """

    tokens: TokenMap
    max_items: int

    @property
    def width(self) -> int:
        """S, tokens of an input."""
        return bool(self.tokens.num_users) + self.max_items * self.tokens.num_levels + 1

    check = staticmethod(check_history)

    def encode(
        self, features: Sequence[Mapping[str, Any]], index: Index
    ) -> tuple[dict[str, Tensor], list[int]]:
        """Turn the features of B requests into the model's inputs, of the same width S always.

        Items that the index does not know leave a history before it is cut to `max_items`.

        Args:
            features: checked.
            index: resolves ad ids to SIDs.

        Returns:
            `input_ids` int64 and `mask` bool, `[B, width]`, and per request how many items were
            skipped.
        """
        sids = np.zeros((len(features), self.max_items, self.tokens.num_levels), np.int64)
        lengths, unknown_items = [], []
        for row, one in zip(sids, features, strict=True):
            history = list(history_of(one))
            ads = index.find_ads(history) if history else np.empty(0, np.int64)
            known = ads[ads >= 0]
            newest = known[-self.max_items :]
            row[: len(newest)] = index.sids[np.asarray(index.ad_sid)[newest]]
            lengths.append(len(newest))
            unknown_items.append(len(ads) - len(known))
        ids, mask = assembled(
            self.tokens.tokens(torch.from_numpy(sids)),
            torch.tensor(lengths),
            self.max_items,
            self._users(features),
        )
        return {"input_ids": ids, "mask": mask}, unknown_items

    def _users(self, features: Sequence[Mapping[str, Any]]) -> Tensor | None:
        if not self.tokens.num_users:
            return None
        users = [one.get("user") for one in features]
        tokens = self.tokens.user_tokens(torch.tensor([user or 0 for user in users]))
        known = torch.tensor([user is not None for user in users])
        return torch.where(known, tokens, PADDING)
