"""The last filter from the exact matcher's words: SIDs → eligible ads, on any device."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class EligibleAds:
    """The ads of the SIDs of B requests that accept them.

    Attributes:
        positions: int64 [k], the ads of request 0, then those of request 1 and so on; a request's
            in the order of its SIDs, and of ad ids within a SID.
        rows: int64 [k], which of its request's SIDs each ad belongs to.
        bounds: int64 [B + 1], of each request's part of `positions`.
        num_expanded: int64 [B], ads of each request's SIDs, eligible or not.
    """

    positions: Tensor
    rows: Tensor
    bounds: Tensor
    num_expanded: Tensor

    @property
    def num_eligible(self) -> Tensor:
        """int64 [B], ads of each request's SIDs that accept it."""
        return self.bounds.diff()


def eligible_ads(
    sids: Tensor,
    signature_words: Tensor,
    ad_signatures: Tensor,
    ad_state: Tensor | None,
    sid_ad_offsets: Tensor,
) -> EligibleAds:
    """Expand SIDs to the ads that accept the request, without looking at a rule again.

    All tensors are on one device, where the result stays. It waits for the device twice, to learn
    how many ads there are.

    Args:
        sids: int64 [B, K], SID indices in the order wanted; -1 for none.
        signature_words: int32 [G], of the batch; bit b of a word is request b's.
        ad_signatures: int32 [A]; -1 for an ad that is not live where `ad_state` is None.
        ad_state: uint8 [A], 0 where an ad is live; or None.
        sid_ad_offsets: int32 or int64 [N + 1], bounds of each SID's ads.
    """
    batch, width = sids.shape
    chosen = sids.clamp(min=0).reshape(-1)
    first = sid_ad_offsets[chosen].long()
    counts = torch.where(sids.reshape(-1) < 0, 0, sid_ad_offsets[chosen + 1].long() - first)
    slot = torch.repeat_interleave(counts)
    before = torch.cumsum(counts, 0) - counts
    ads = torch.arange(len(slot), device=sids.device) + (first - before)[slot]
    signatures = ad_signatures[ads].long()
    request = slot // max(width, 1)
    accepted = (signature_words[signatures.clamp(min=0)] >> request & 1) != 0
    accepted &= signatures >= 0 if ad_state is None else ad_state[ads] == 0
    kept = torch.nonzero(accepted).squeeze(1)
    sizes = torch.bincount(request[kept], minlength=batch)
    return EligibleAds(
        positions=ads[kept],
        rows=slot[kept] % max(width, 1),
        bounds=torch.cat([sizes.new_zeros(1), torch.cumsum(sizes, 0)]),
        num_expanded=counts.reshape(batch, width).sum(1),
    )
