"""Words that hold one bit per request, and which backend computes them."""

from __future__ import annotations

import importlib.util

import torch
from torch import Tensor

MAX_REQUESTS = 32  # bits of a word
BACKENDS = ("auto", "native", "triton", "reference")


def pack_requests(flags: Tensor) -> Tensor:
    """Return int32 [n] whose bit b is `flags[:, b]`; flags is bool [n, B] with B at most 32."""
    bits = 1 << torch.arange(flags.shape[1], dtype=torch.int64, device=flags.device)
    return (flags * bits).sum(1).to(torch.int32)  # the cast keeps the low 32 bits


def everyone(num_requests: int) -> int:
    """The word, as a signed 32-bit number, in which the bits of all requests are set."""
    word = (1 << num_requests) - 1
    return word - (1 << 32) if word >> 31 else word


def choose_backend(backend: str, device: torch.device) -> str:
    """Resolve `auto`: native on the CPU, Triton on CUDA where it is installed.

    Raises:
        ValueError: if there is no such backend.
    """
    if backend not in BACKENDS:
        raise ValueError(f"backend must be one of {', '.join(BACKENDS)}, got {backend!r}")
    if backend != "auto":
        return backend
    if device.type == "cpu":
        return "native"
    installed = device.type == "cuda" and importlib.util.find_spec("triton") is not None
    return "triton" if installed else "reference"


def output(out: Tensor | None, size: int, device: torch.device) -> Tensor:
    """Return `out`, checked to be int32 [size], or a new tensor of that form.

    Raises:
        ValueError: if `out` does not fit.
    """
    if out is None:
        return torch.empty(size, dtype=torch.int32, device=device)
    if out.dtype != torch.int32 or out.shape != (size,) or not out.is_contiguous():
        raise ValueError(
            f"out must be contiguous int32 [{size}], got {out.dtype} {list(out.shape)}"
        )
    return out


def check_dtypes(dtypes: tuple[torch.dtype, ...], **tensors: Tensor) -> None:
    """Refuse a tensor of any other dtype.

    Raises:
        ValueError: naming the tensor.
    """
    for name, tensor in tensors.items():
        if tensor.dtype not in dtypes:
            wanted = " or ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)
            raise ValueError(f"{name} must be {wanted}, got {tensor.dtype}")
