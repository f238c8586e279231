"""Several processes that train one model, as torchrun starts them."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import Tensor

from grace.decode import check_device


@dataclasses.dataclass(frozen=True)
class Processes:
    """This process among those of a run.

    Attributes:
        number: from 0; number 0 writes the run folder.
        count: how many there are.
        device: this one's.
    """

    number: int
    count: int
    device: str

    def sum_(self, *tensors: Tensor) -> None:
        """Add tensors up over all processes, in place."""
        if self.count > 1:
            for tensor in tensors:
                dist.all_reduce(tensor)

    def wait(self) -> None:
        """Return once every process has come here."""
        if self.count > 1:
            dist.barrier()


@contextlib.contextmanager
def joined(device: str) -> Iterator[Processes]:
    """Join the other processes, if torchrun started this one, for as long as the block runs.

    Args:
        device: `cpu` or `cuda`; under torchrun each process takes the GPU of its local number.

    Raises:
        ConfigError: if the device cannot be used.
    """
    count = int(os.environ.get("WORLD_SIZE", "1"))
    if count == 1:
        check_device(device)
        if device.startswith("cuda:"):
            torch.cuda.set_device(device)
        yield Processes(0, 1, device)
        return
    if device == "cuda":
        device = f"cuda:{os.environ['LOCAL_RANK']}"
    check_device(device)
    if device.startswith("cuda"):
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.startswith("cuda") else "gloo")
    try:
        yield Processes(dist.get_rank(), count, device)
    finally:
        dist.destroy_process_group()
