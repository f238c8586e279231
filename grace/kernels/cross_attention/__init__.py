"""Cross-attention with beams as queries: all beams of a request read its one context (GRACE, 4.1).

The beams of a request become the query sequence of one attention call (equations 11-12), so that
no key or value is copied per beam and a tile of keys serves many beams. It changes the layout only
(equations 13-14, Appendix B): no two requests mix, and beams keep their order.
"""

from __future__ import annotations

import torch
from torch import Tensor

from grace.kernels.backends import check_float, check_form, form, runs_plain, triton_or_reference
from grace.kernels.cross_attention.choice import BACKENDS, choose_backend, run_backend
from grace.kernels.cross_attention.reference import (
    cross_attention_fp8_reference,
    cross_attention_reference,
    value_scales_reference,
)
from grace.kernels.fp8_rows.rows import Fp8Rows


def cross_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    lengths: Tensor | None = None,
    backend: str = "auto",
) -> Tensor:
    """Let each beam of a request attend to the request's context.

    Query head h reads key head h // (H / Hkv). Scores are scaled by D^-1/2; they, the softmax and
    the sums are float32 (float64 for float64). No gradients.

    Args:
        query: `[B, M, H, D]`, any floating dtype.
        key: `[B, Hkv, T, D]`. Any strides do: a view of `[B, T, Hkv, D]` needs no copy.
        value: `[B, Hkv, T, D]`.
        lengths: int32 `[B]`, from 1 to T: how many context positions a request has. What stands
            past them may be anything, NaN too. None where all have T. Out of range, a length is
            clamped.
        backend: one of `BACKENDS`. `auto` is the reference on a CPU; on CUDA the fastest of the
            others, measured at the first call of a shape (beams rounded up to a power of two) and
            kept on disk (`grace.kernels.tuning`); a shape first met inside a graph's capture gets
            `triton`, or `efficient` in float32. `flash` takes no lengths, `triton` no float64.

    Returns:
        `[B, M, H, D]`, contiguous, ready for the output projection.

    Raises:
        ValueError: if shapes, dtypes, devices or the backend do not fit.
        RuntimeError: if the named backend cannot run these sizes or this dtype here.
    """
    lengths = _check(query, key, value, lengths)
    if backend not in BACKENDS:
        raise ValueError(f"backend must be one of {', '.join(BACKENDS)}, got {backend!r}")
    if backend == "flash" and lengths is not None:
        raise ValueError("backend flash takes no lengths; use auto, triton, cudnn or efficient")
    if backend == "triton" and query.dtype == torch.float64:
        raise ValueError("backend triton takes no float64; use auto or reference")
    if backend == "auto" and query.device.type == "cpu":
        backend = "reference"
    if runs_plain(backend):
        return cross_attention_reference(query, key, value, lengths).contiguous()
    return torch.ops.grace.cross_attention(query, key, value, lengths, backend)


def cross_attention_fp8(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scales: Tensor,
    lengths: Tensor | None = None,
    backend: str = "auto",
) -> Fp8Rows:
    """Return `cross_attention` in FP8, by scales that are known before any of its numbers.

    A row is a mean of values, so no number in it passes the largest of them: a request's
    `value_scales` serve all its rows, which a program that knows one head could not measure.

    Args:
        query: as in `cross_attention`, like key, value and lengths.
        scales: float32 `[B]`, one for all rows of a request; none 0.
        backend: `auto` (Triton on CUDA, else the reference), `triton` or `reference`.

    Returns:
        Values `[B M, H D]`, scales `[B M]`.

    Raises:
        ValueError: if shapes, dtypes, devices or the backend do not fit.
    """
    lengths = _check(query, key, value, lengths)
    check_form("scales", scales, query.shape[:1], query.new_empty(0, dtype=torch.float32))
    chosen = triton_or_reference(backend, query)
    if runs_plain(chosen):
        return Fp8Rows(*cross_attention_fp8_reference(query, key, value, scales, lengths))
    rows = torch.ops.grace.cross_attention_fp8(query, key, value, scales, lengths, chosen)
    return Fp8Rows(*rows)


def value_scales(value: Tensor, lengths: Tensor | None = None) -> Tensor:
    """Return float32 `[B]`, the largest magnitude of each request's values by 448.

    At least 2^-126, but 1 where all are 0, and NaN where one is NaN or infinite.

    Args:
        value: as in `cross_attention`, like lengths; positions past a length do not count.
    """
    return value_scales_reference(value, _in_range(lengths, value))


def _check(query: Tensor, key: Tensor, value: Tensor, lengths: Tensor | None) -> Tensor | None:
    """Refuse what does not fit, and return the lengths in range."""
    check_float("query", query)
    if query.ndim != 4 or key.ndim != 4 or query.numel() == 0 or key.numel() == 0:
        raise ValueError(
            f"query must be [B, M, H, D] and key [B, Hkv, T, D], none of them 0, got "
            f"{form(query)} and {form(key)}"
        )
    batch, _, num_heads, head_dim = query.shape
    check_form("key", key, (batch, *key.shape[1:3], head_dim), query)
    check_form("value", value, tuple(key.shape), query)
    if num_heads % key.shape[1]:
        raise ValueError(f"{num_heads} query heads are no multiple of {key.shape[1]} key heads")
    if lengths is not None and (
        lengths.dtype != torch.int32 or lengths.shape != (batch,) or lengths.device != query.device
    ):
        raise ValueError(
            f"lengths must be int32 [{batch}] on {query.device}, got {form(lengths)} "
            f"on {lengths.device}"
        )
    return _in_range(lengths, key)


def _in_range(lengths: Tensor | None, heads: Tensor) -> Tensor | None:
    return None if lengths is None else lengths.clamp(1, heads.shape[2])


@torch.library.custom_op("grace::cross_attention", mutates_args=())
def _cross_attention(
    query: Tensor, key: Tensor, value: Tensor, lengths: Tensor | None, backend: str
) -> Tensor:
    if backend == "auto":
        backend = choose_backend(query, key, value, lengths)
    return run_backend(backend, query, key, value, lengths).contiguous()


@_cross_attention.register_fake
def _(query: Tensor, key: Tensor, value: Tensor, lengths: Tensor | None, backend: str) -> Tensor:
    return query.new_empty(query.shape)


@torch.library.custom_op("grace::cross_attention_fp8", mutates_args=())
def _cross_attention_fp8(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scales: Tensor,
    lengths: Tensor | None,
    backend: str,
) -> tuple[Tensor, Tensor]:
    if backend == "reference":
        return cross_attention_fp8_reference(query, key, value, scales, lengths)
    from grace.kernels.cross_attention.kernel import cross_attention_fp8_triton

    return cross_attention_fp8_triton(query, key, value, scales, lengths)


@_cross_attention_fp8.register_fake
def _(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scales: Tensor,
    lengths: Tensor | None,
    backend: str,
) -> tuple[Tensor, Tensor]:
    batch, beams, num_heads, head_dim = query.shape
    shape = (batch * beams, num_heads * head_dim)
    return query.new_empty(shape, dtype=torch.float8_e4m3fn), scales.new_empty(batch * beams)
