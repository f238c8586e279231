"""The specification of cross_attention, in plain torch on any device."""

from __future__ import annotations

import torch
from torch import Tensor

from grace.kernels.fp8_rows.reference import scales_reference


def cross_attention_reference(
    query: Tensor, key: Tensor, value: Tensor, lengths: Tensor | None
) -> Tensor:
    """Return `[B, M, H, D]`; the contract is `cross_attention`'s, `lengths` in range."""
    wide = torch.promote_types(query.dtype, torch.float32)
    batch, beams, num_heads, head_dim = query.shape
    num_kv_heads, num_positions = key.shape[1:3]
    # [B, Hkv, group * M, D]: equation 11, the group's heads beside the beams.
    grouped = query.to(wide).unflatten(2, (num_kv_heads, -1)).permute(0, 2, 3, 1, 4).flatten(2, 3)
    key, value = key.to(wide), value.to(wide)
    if lengths is not None:
        beyond = torch.arange(num_positions, device=query.device) >= lengths[:, None, None, None]
        key = key.masked_fill(beyond.transpose(2, 3), 0)
        value = value.masked_fill(beyond.transpose(2, 3), 0)
    scores = grouped @ key.transpose(2, 3) * head_dim**-0.5
    if lengths is not None:
        scores = scores.masked_fill(beyond, -torch.inf)
    attended = torch.softmax(scores, -1) @ value
    heads = attended.unflatten(2, (-1, beams)).permute(0, 3, 1, 2, 4)
    return heads.reshape(batch, beams, num_heads, head_dim).to(query.dtype)


def cross_attention_fp8_reference(
    query: Tensor, key: Tensor, value: Tensor, scales: Tensor, lengths: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Return values `[B M, H D]` and scales; the contract is `cross_attention_fp8`'s."""
    batch, beams = query.shape[:2]
    attended = cross_attention_reference(query.float(), key.float(), value.float(), lengths)
    scales = scales.repeat_interleave(beams)
    rows = attended.reshape(batch * beams, -1) / scales[:, None]
    return rows.to(torch.float8_e4m3fn), scales


def value_scales_reference(value: Tensor, lengths: Tensor | None) -> Tensor:
    """Return float32 `[B]`; the contract is `value_scales`'."""
    largest = value.abs().amax((1, 3)).float()
    if lengths is not None:
        beyond = torch.arange(value.shape[2], device=value.device) >= lengths[:, None]
        largest = largest.masked_fill(beyond, 0)
    return scales_reference(largest.amax(1))
