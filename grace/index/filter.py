"""The last filter: SIDs -> ads -> the ads whose own rules accept a request, counted on the way."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from torch import Tensor

from grace import _native
from grace.index.rules import CompiledTargeting, RangeRules, RuleTables

# Why an ad is refused, besides its attributes; the order in which refusals are counted.
STATE_REASONS = ("paused", "bid_off", "window")


@dataclass(frozen=True)
class Expansion:
    """The ads of some SIDs, after the last filter.

    Attributes:
        positions: int64 [k], eligible ads, in the order of the SIDs and of ad ids within a SID.
        rows: int64 [k], which of the given SIDs each ad belongs to.
        num_expanded: ads before the filter.
        dropped: ads refused, by the first reason that refuses: `paused`, `bid_off`, `window`,
            attributes.
    """

    positions: np.ndarray
    rows: np.ndarray
    num_expanded: int
    dropped: dict[str, int]


class AdFilter:
    """Checks ads one by one against their rules, in native code without the interpreter lock."""

    def __init__(self, tables: RuleTables, sid_ad_offsets: Tensor, ad_signatures: Tensor):
        self.reasons = (*STATE_REASONS, *tables.schema.names)
        self._native = _native.AdFilter(
            tables.signatures.numpy(),
            ad_signatures.numpy(),
            tables.windows.numpy(),
            sid_ad_offsets.numpy(),
            [_arrays(rules) for rules in tables.rules],
        )

    def expand(self, sids: np.ndarray, state: Tensor, request: CompiledTargeting) -> Expansion:
        """Return the eligible ads of the given SID indices, int64 [n], in their order.

        `state` is uint8 [num_ads], see `Index.ad_state`.
        """
        positions, rows, expanded, dropped = self._native.expand(
            np.ascontiguousarray(sids, np.int64), state.numpy(), *_arguments(request)
        )
        return Expansion(
            positions, rows, expanded, dict(zip(self.reasons, dropped.tolist(), strict=True))
        )

    def explain(
        self, positions: np.ndarray, state: Tensor, request: CompiledTargeting
    ) -> np.ndarray:
        """Return uint64 [n]: bit i is set if `reasons[i]` refuses the ad; 0 means accepted."""
        return self._native.explain(
            np.ascontiguousarray(positions, np.int64), state.numpy(), *_arguments(request)
        )


def _arrays(rules: object) -> tuple:
    if isinstance(rules, RangeRules):
        return rules.min.numpy(), rules.max.numpy()
    csr = (
        rules.include_offsets, rules.include_values, rules.exclude_offsets, rules.exclude_values,
    )  # fmt: skip
    return (*(array.numpy() for array in csr), len(rules.values))


def _arguments(request: CompiledTargeting) -> tuple:
    return request.targeting.at, request.known, request.numbers, list(request.value_ids)
