"""Where a model may run."""

from __future__ import annotations

import torch

from grace.errors import ConfigError


def check_device(device: str) -> None:
    """Refuse a device that cannot compute here.

    Raises:
        ConfigError: naming the device and why.
    """
    if not isinstance(device, (str, torch.device)):
        raise ConfigError(f"device: expected a name such as 'cpu' or 'cuda', got {device!r}")
    try:
        torch.zeros(1, device=device).item()
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(f"device: cannot use {device!r}: {reason}") from None
