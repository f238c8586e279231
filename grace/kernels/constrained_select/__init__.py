"""One decode step's constraint and selection: allowed children, scored, the best kept."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from grace.kernels.constrained_select.reference import select_reference


@dataclass(frozen=True)
class Selection:
    """The beams that leave a step, best first; fewer than `width` where fewer are possible.

    Attributes:
        parents: int64 [B, width], rows of the step; 0 in a dead slot.
        tokens: int64 [B, width], chosen tokens; 0 in a dead slot.
        nodes: int64 [B, width], trie nodes reached; -1 in a dead slot.
        scores: float32 [B, width], cumulative log-probabilities; -inf in a dead slot.
    """

    parents: Tensor
    tokens: Tensor
    nodes: Tensor
    scores: Tensor


def constrained_select(
    columns: Tensor,
    logsumexp: Tensor,
    scores: Tensor,
    nodes: Tensor,
    child_offsets: Tensor,
    child_tokens: Tensor,
    words: Tensor | None,
    width: int,
    backend: str = "auto",
    allowed: Tensor | None = None,
) -> Selection:
    """Extend each beam by the tokens that its trie node and the request allow; keep the best.

    A candidate scores `scores[b, m] + float32(columns[b, m, token] - logsumexp[b, m])`, the
    difference taken in float64. Higher scores come first, equal ones in node order, which inside a
    level of the trie is SID order. A score of -inf is never chosen. A beam is dead, and ignored
    with all its logits, if its node is negative or its `logsumexp` is not finite.

    Args:
        columns: float32 [B, M, V], logits; B at most 32 where `words` is given.
        logsumexp: float64 [B, M], normaliser of each row over the whole vocabulary.
        scores: float32 [B, M], cumulative log-probabilities of the beams.
        nodes: int64 [B, M], their trie nodes; -1 marks a dead beam.
        child_offsets: int32 or int64 [inner nodes + 1], bounds of each node's entries.
        child_tokens: int32 [entries], all below V; entry e leads to node e + 1.
        words: int32 [nodes], bit b of word n says whether request b may reach n; None allows all.
        width: how many beams to keep.
        backend: `auto` (native on the CPU, reference elsewhere), `native` or `reference`.
        allowed: instead of `words`, int32 [B, M, ceil(C / 32)], C at least the number of children
            of any of the nodes: bit j % 32 of word j // 32 says whether a beam may reach its
            node's j-th child; see `match_children`.

    Raises:
        ValueError: if shapes, dtypes or the backend do not fit.
    """
    _check(columns, logsumexp, scores, nodes, words, allowed, width)
    if backend not in ("auto", "native", "reference"):
        raise ValueError(f"backend must be auto, native or reference, got {backend!r}")
    arguments = (columns, logsumexp, scores, nodes, child_offsets, child_tokens, words, allowed)
    if backend == "reference" or (backend == "auto" and columns.device.type != "cpu"):
        return Selection(*select_reference(*arguments, width))
    from grace import _native

    # Without .detach() a tensor that a model computed under autograd refuses to become an array.
    arrays = [None if a is None else a.detach().contiguous().numpy() for a in arguments]
    return Selection(*map(torch.from_numpy, _native.constrained_select(*arrays, width)))


def _check(
    columns: Tensor,
    logsumexp: Tensor,
    scores: Tensor,
    nodes: Tensor,
    words: Tensor | None,
    allowed: Tensor | None,
    width: int,
) -> None:
    if columns.ndim != 3 or columns.dtype != torch.float32:
        raise ValueError(f"columns must be float32 [B, M, V], got {_form(columns)}")
    expected = {
        "logsumexp": (logsumexp, torch.float64),
        "scores": (scores, torch.float32),
        "nodes": (nodes, torch.int64),
    }
    for name, (tensor, dtype) in expected.items():
        if tensor.shape != columns.shape[:2] or tensor.dtype != dtype:
            want = f"{str(dtype).removeprefix('torch.')} {list(columns.shape[:2])}"
            raise ValueError(f"{name} must be {want}, got {_form(tensor)}")
    if words is not None and (words.dtype != torch.int32 or columns.shape[0] > 32):
        raise ValueError(
            f"words must be int32 for at most 32 requests, got {_form(words)} for "
            f"{columns.shape[0]} requests"
        )
    if allowed is not None:
        if words is not None:
            raise ValueError("words and allowed say the same in two ways: give one of them")
        if (
            allowed.dtype != torch.int32
            or allowed.ndim != 3
            or allowed.shape[:2] != columns.shape[:2]
        ):
            want = f"[{columns.shape[0]}, {columns.shape[1]}, words]"
            raise ValueError(f"allowed must be int32 {want}, got {_form(allowed)}")
    if width < 1:
        raise ValueError(f"width must be at least 1, got {width}")


def _form(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"
