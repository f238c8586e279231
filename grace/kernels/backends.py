"""Which backend runs a kernel, and how its arguments are named in errors."""

from __future__ import annotations

import importlib.util

import torch
from torch import Tensor

# A constant, since the compiler cannot trace a search for packages.
HAS_TRITON = importlib.util.find_spec("triton") is not None
FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


def triton_or_reference(backend: str, like: Tensor) -> str:
    """Resolve `auto` for a tensor: Triton on CUDA where it is installed, else the reference.

    Raises:
        ValueError: if there is no such backend, or it is `triton` and the tensor float64, which our
            kernels do not compute in.
    """
    if backend not in ("auto", "triton", "reference"):
        raise ValueError(f"backend must be auto, triton or reference, got {backend!r}")
    wide = like.dtype == torch.float64
    if backend == "triton" and wide:
        raise ValueError("backend triton takes no float64; use auto or reference")
    if backend != "auto":
        return backend
    return "triton" if like.is_cuda and HAS_TRITON and not wide else "reference"


def runs_plain(backend: str) -> bool:
    """Whether to call a reference as it is: eager code gains nothing from an operation around it.

    The first call of any operation defined in Python loads torch's compiler, which takes seconds.
    """
    return backend == "reference" and not torch.compiler.is_compiling()


def form(tensor: Tensor) -> str:
    """Dtype and shape, for messages."""
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"


def check_float(name: str, tensor: Tensor) -> None:
    """Refuse a tensor that is not of a floating-point dtype.

    Raises:
        ValueError: naming the tensor.
    """
    if tensor.dtype not in FLOATS:
        raise ValueError(f"{name} must be floating point, got {form(tensor)}")


def check_form(name: str, tensor: Tensor, shape: tuple[int, ...], like: Tensor) -> None:
    """Refuse a tensor of another shape, or of another dtype or device than `like`.

    Raises:
        ValueError: naming the tensor, what was expected and what came.
    """
    if tensor.shape != shape or tensor.dtype != like.dtype or tensor.device != like.device:
        wanted = f"{str(like.dtype).removeprefix('torch.')} {list(shape)} on {like.device}"
        raise ValueError(f"{name} must be {wanted}, got {form(tensor)} on {tensor.device}")
