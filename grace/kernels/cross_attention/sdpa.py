"""cross_attention through torch's scaled_dot_product_attention and one of its backends."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel


def cross_attention_sdpa(
    query: Tensor, key: Tensor, value: Tensor, lengths: Tensor | None, backend: SDPBackend
) -> Tensor:
    """Return `[B, M, H, D]`; the contract is `cross_attention`'s, `lengths` in range."""
    if backend == SDPBackend.EFFICIENT_ATTENTION and key.shape[1] != query.shape[2]:
        group = query.shape[2] // key.shape[1]  # it knows no groups
        key, value = (heads.repeat_interleave(group, 1) for heads in (key, value))
    mask = None
    if lengths is not None:
        inside = torch.arange(key.shape[2], device=query.device) < lengths[:, None, None, None]
        # A masked key has a share of 0, and 0 times what stands there must be 0.
        key, value = (heads.masked_fill(~inside.transpose(2, 3), 0) for heads in (key, value))
        mask = inside.expand(-1, 1, query.shape[1], -1)
    with sdpa_kernel(backend):
        attended = F.scaled_dot_product_attention(
            query.transpose(1, 2), key, value, mask, enable_gqa=key.shape[1] != query.shape[2]
        )
    return attended.transpose(1, 2)
