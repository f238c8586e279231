"""The last filter: SIDs -> ads -> the ads whose own rules accept a request, counted on the way."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
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


class FoundAds(NamedTuple):
    """The ads of one request's beams, after the last filter.

    Attributes:
        positions: int64 [n], eligible ads, in the order of the beams and of ad ids within a SID.
        sids: int64 [n, L], the SID of each ad.
        scores: float32 [n], the score of its beam.
        counts: int64 [5]: SIDs, those in the catalogue, those with an eligible ad, ads before the
            filter, ads after it.
        dropped: int64, ads refused, by the first of the filter's `reasons` that refuses.
    """

    positions: np.ndarray
    sids: np.ndarray
    scores: np.ndarray
    counts: np.ndarray
    dropped: np.ndarray


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

    def find(
        self,
        tokens: np.ndarray,
        nodes: np.ndarray,
        scores: np.ndarray,
        first_leaf: int,
        state: Tensor,
        requests: Sequence[CompiledTargeting],
        top_k: Sequence[int | None],
    ) -> list[FoundAds]:
        """Return the eligible ads of a batch's beams; see `Index.find`.

        As many threads as torch uses share the requests; the split never shows.
        """
        most = np.array([-1 if limit is None else limit for limit in top_k], np.int64)
        found = self._native.find(
            tokens, nodes, scores, first_leaf, state.numpy(), list(map(_arguments, requests)), most,
            torch.get_num_threads(),
        )  # fmt: skip
        return list(itertools.starmap(FoundAds, found))

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
