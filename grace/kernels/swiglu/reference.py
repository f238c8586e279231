"""The specification of swiglu, in plain torch on any device."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def swiglu_reference(gate_up: Tensor, interleaved: bool = False) -> Tensor:
    """Return `[..., F]`; the contract is `swiglu`'s."""
    wide = gate_up.to(torch.promote_types(gate_up.dtype, torch.float32))
    if interleaved:
        gate, up = wide.unflatten(-1, (-1, 2)).unbind(-1)
    else:
        gate, up = wide.chunk(2, dim=-1)
    return (F.silu(gate) * up).to(gate_up.dtype)
