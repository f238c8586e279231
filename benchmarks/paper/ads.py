"""From generated SIDs to ads, and which stage of targeting lets each of them pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from benchmarks.paper.search import Workload
from grace.index import Index
from grace.index.rules import CompiledTargeting
from grace.index.trie import Trie
from grace.index.unions import Partitioning, UnionMatcher, build_unions
from grace.kernels.match_children import RequestMasks, match_children


@dataclass(frozen=True)
class Generated:
    """The ads of all generated SIDs, request by request, by falling score of their SID.

    Attributes:
        offsets: int64 [R + 1], each request's ads.
        positions: int64 [n], ads in the index.
        slots: int64 [n], which of its request's SIDs each ad belongs to.
    """

    offsets: np.ndarray
    positions: np.ndarray
    slots: np.ndarray

    @property
    def requests(self) -> np.ndarray:
        """int64 [n], which request each ad was generated for."""
        return np.repeat(np.arange(len(self.offsets) - 1), np.diff(self.offsets))


def expand(leaves: np.ndarray, sid_ad_offsets: np.ndarray) -> Generated:
    """Expand SIDs, int64 [R, K] with -1 for none, into their ads."""
    rows, slots = np.nonzero(leaves >= 0)
    sids = leaves[rows, slots]
    first = sid_ad_offsets[sids].astype(np.int64)
    counts = sid_ad_offsets[sids + 1] - first
    ends = np.cumsum(counts)
    positions = np.repeat(first - (ends - counts), counts) + np.arange(ends[-1] if len(ends) else 0)
    per_request = np.bincount(rows, weights=counts, minlength=len(leaves)).astype(np.int64)
    return Generated(np.r_[0, np.cumsum(per_request)], positions, np.repeat(slots, counts))


class OwnRows:
    """The paper's ad-level matcher: each ad's own bitmask and Bloom filter, not its union's.

    Args:
        index: the catalogue.
        positions: int64 [n], the ads that will be asked about; repeated ones cost nothing.
        device: where rows are tested.
    """

    def __init__(self, index: Index, positions: np.ndarray, device: str):
        self._signatures = index.data.ad_signatures
        used = np.unique(self._signatures.numpy()[positions])
        self._number = np.full(len(index.data.tables.signatures), -1, np.int64)
        self._number[used] = np.arange(len(used))
        # A trie of one level: leaf i is signature used[i], and node i's only child is leaf i.
        trie = Trie(
            torch.tensor([0, 1, 1 + len(used)]),
            torch.tensor([0, len(used)]),
            torch.arange(len(used), dtype=torch.int32),
        )
        matcher = build_unions(
            "own rows", index.data.tables, trie, torch.arange(len(used) + 1),
            torch.from_numpy(used.astype(np.int32)), index.data.bloom, Partitioning(),
        )  # fmt: skip
        self._matcher: UnionMatcher = matcher.to(device)
        self._child_offsets = torch.arange(len(used) + 1, device=device)

    def test(
        self, requests: Sequence[CompiledTargeting], nodes: Tensor
    ) -> tuple[np.ndarray, np.ndarray]:
        """Test the ads at positions, int64 [B, M] with -1 for none.

        Returns:
            bool [B, M] twice: whether the bitmask accepts, and whether the Bloom filter does.
        """
        numbers = torch.from_numpy(self._number)[self._signatures[nodes.clamp_min(0)].long()]
        numbers = torch.where(nodes < 0, -1, numbers).to(self._child_offsets.device)
        masks = self._matcher.masks(requests).to(self._child_offsets.device)
        anything = replace(masks, want=torch.zeros_like(masks.want))
        nowhere = replace(masks, num_places=torch.full_like(masks.num_places, -1))
        return self._passes(numbers, nowhere), self._passes(numbers, anything)

    def _passes(self, numbers: Tensor, masks: RequestMasks) -> np.ndarray:
        allowed = match_children(numbers, self._child_offsets, self._matcher.rows, masks)
        return (
            (allowed[..., 0] != 0).cpu().numpy()
            if allowed.shape[-1]
            else np.zeros(numbers.shape, bool)
        )


@dataclass(frozen=True)
class Passed:
    """Which generated ads pass, bool [n] each.

    Attributes:
        bitmask: the ad's own bitmask accepts the request.
        bloom: its own Bloom filter does, or it has no place rule.
        final: the exact filter accepts it: rules, window and pause.
    """

    bitmask: np.ndarray
    bloom: np.ndarray
    final: np.ndarray


def judge(workload: Workload, generated: Generated, own: OwnRows) -> Passed:
    """Judge every generated ad; asserts that no ad's own row refuses what the filter accepts."""
    bitmask = np.zeros(len(generated.positions), bool)
    bloom, final = bitmask.copy(), bitmask.copy()
    offsets = generated.offsets
    for part in workload.batches:
        compiled = workload.compiled[part]
        bounds = offsets[part.start : part.stop + 1]
        counts = np.diff(bounds)
        nodes = np.full((len(compiled), max(1, counts.max(initial=0))), -1, np.int64)
        inside = np.arange(nodes.shape[1]) < counts[:, None]
        flat = slice(bounds[0], bounds[-1])
        nodes[inside] = generated.positions[flat]
        row_bits, row_bloom = own.test(compiled, torch.from_numpy(nodes))
        bitmask[flat], bloom[flat] = row_bits[inside], row_bloom[inside]
        for b, request in enumerate(compiled):
            ads = slice(bounds[b], bounds[b + 1])
            final[ads] = workload.index.explain(generated.positions[ads], request) == 0
    assert not (final & ~(bitmask & bloom)).any(), "an ad's own row refuses what its rules accept"
    return Passed(bitmask, bloom, final)
