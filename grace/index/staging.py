"""Small arrays that go to a device together, in one copy from page-locked memory."""

from __future__ import annotations

import math

import torch
from torch import Tensor

ALIGNMENT = 16  # bytes; what vector loads ask for


class Staging:
    """Arrays of fixed form, each on the host and at the same place on the device.

    Args:
        forms: name → (dtype, shape).
        device: where the copies live.

    Attributes:
        host: name → tensor on the CPU, to be filled before `copy`.
        device: name → tensor on the device, filled by `copy`.
    """

    def __init__(self, forms: dict[str, tuple[torch.dtype, tuple[int, ...]]], device: torch.device):
        bounds, size = {}, 0
        for name, (dtype, shape) in forms.items():
            num_bytes = math.prod(shape) * dtype.itemsize
            bounds[name] = size, size + num_bytes
            size += -(-num_bytes // ALIGNMENT) * ALIGNMENT
        self._host = torch.zeros(size, dtype=torch.uint8, pin_memory=device.type == "cuda")
        self._device = torch.zeros(size, dtype=torch.uint8, device=device)

        def views(of: Tensor) -> dict[str, Tensor]:
            return {
                name: of[slice(*bounds[name])].view(dtype).view(shape)
                for name, (dtype, shape) in forms.items()
            }

        self.host, self.device = views(self._host), views(self._device)

    def copy(self) -> None:
        """Enqueue the copy on the current stream; the host must not write before it has run."""
        self._device.copy_(self._host, non_blocking=True)
