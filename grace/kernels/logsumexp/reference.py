"""The specification of logsumexp, in plain torch on any device."""

from __future__ import annotations

import torch
from torch import Tensor


def logsumexp_reference(logits: Tensor) -> Tensor:
    """Return float64 [...]; the contract is `logsumexp`'s."""
    return torch.logsumexp(logits.double(), -1)
