"""The specification of leaf_words, in plain torch on any device."""

from __future__ import annotations

import torch
from torch import Tensor

from grace.kernels.segment_or.reference import segment_or_reference


def leaf_words_reference(
    signature_words: Tensor, ad_signatures: Tensor, ad_state: Tensor, sid_ad_offsets: Tensor
) -> Tensor:
    """Return int32 [N]; the contract is `leaf_words`'."""
    ads = torch.where(ad_state == 0, signature_words[ad_signatures.long()], 0)
    return segment_or_reference(ads, sid_ad_offsets.long())
