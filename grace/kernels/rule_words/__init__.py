"""Distinct rules and windows, each decided for a whole batch: one word per rule."""

from __future__ import annotations

import torch
from torch import Tensor

from grace.kernels.rule_words import reference
from grace.kernels.words import MAX_REQUESTS, check_dtypes, choose_backend, output


def value_words(
    include_offsets: Tensor,
    include_values: Tensor,
    exclude_offsets: Tensor,
    exclude_values: Tensor,
    carried: Tensor,
    known: int,
    everyone: int,
    out: Tensor | None = None,
    backend: str = "auto",
    workers: int | None = None,
) -> Tensor:
    """Decide rules that include and exclude values: known AND include AND NOT exclude.

    Args:
        include_offsets, exclude_offsets: int32 or int64 [R + 1], bounds of each rule's values.
        include_values, exclude_values: int32, value ids below V. A rule that includes none accepts
            any value.
        carried: int32 [V], the requests that carry each value.
        known: word of the requests that carry any value at all.
        everyone: word of all requests; rule 0, "no rule", gets it.
        out: int32 [R] to write to.
        backend: `auto`, `native`, `triton` or `reference`.
        workers: threads of the native backend; by default as many as torch uses.

    Returns:
        int32 [R], the requests that each rule accepts.

    Raises:
        ValueError: if dtypes or the backend do not fit.
    """
    check_dtypes((torch.int32, torch.int64), include_offsets=include_offsets)
    check_dtypes((torch.int32, torch.int64), exclude_offsets=exclude_offsets)
    check_dtypes((torch.int32,), include_values=include_values, exclude_values=exclude_values)
    check_dtypes((torch.int32,), carried=carried)
    lists = (include_offsets, include_values, exclude_offsets, exclude_values)
    out = output(out, len(include_offsets) - 1, carried.device)
    chosen = choose_backend(backend, carried.device)
    if chosen == "triton":
        from grace.kernels.rule_words.kernel import value_words_triton

        return value_words_triton(*lists, carried, known, everyone, out)
    if chosen == "reference":
        return out.copy_(reference.value_words_reference(*lists, carried, known, everyone))
    from grace import _native

    arrays = [tensor.numpy() for tensor in (*lists, carried)]
    _native.value_words(*arrays, known, everyone, out.numpy(), workers or torch.get_num_threads())
    return out


def interval_words(
    low: Tensor,
    high: Tensor,
    points: Tensor,
    closed: bool,
    everyone: int,
    out: Tensor | None = None,
    backend: str = "auto",
    workers: int | None = None,
) -> Tensor:
    """Decide rules that accept an interval of numbers (closed) or of time (half open).

    Args:
        low, high: float64 or int64 [R], the ends of each rule.
        points: of the same dtype [B], B at most 32, where each request stands; NaN is nowhere.
        closed: whether the interval holds its upper end.
        everyone: word of all requests; rule 0, "no rule" or "always", gets it.
        out: int32 [R] to write to.
        backend: `auto`, `native`, `triton` or `reference`.
        workers: threads of the native backend; by default as many as torch uses.

    Returns:
        int32 [R], the requests that each rule accepts.

    Raises:
        ValueError: if dtypes, B or the backend do not fit.
    """
    check_dtypes((torch.float64, torch.int64), low=low)
    check_dtypes((low.dtype,), high=high, points=points)
    if len(points) > MAX_REQUESTS:
        raise ValueError(f"a word holds {MAX_REQUESTS} requests, got {len(points)}")
    out = output(out, len(low), low.device)
    chosen = choose_backend(backend, low.device)
    if chosen == "triton":
        from grace.kernels.rule_words.kernel import interval_words_triton

        return interval_words_triton(low, high, points, closed, everyone, out)
    if chosen == "reference":
        return out.copy_(reference.interval_words_reference(low, high, points, closed, everyone))
    from grace import _native

    arrays = [tensor.numpy() for tensor in (low, high, points)]
    native = _native.range_words if low.dtype == torch.float64 else _native.window_words
    native(*arrays, closed, everyone, out.numpy(), workers or torch.get_num_threads())
    return out
