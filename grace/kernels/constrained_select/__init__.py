"""One decode step's constraint and selection: allowed children, scored, the best kept."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from grace.kernels.constrained_select.reference import select_reference
from grace.kernels.constrained_select.tiles import Workspace
from grace.kernels.words import choose_backend

__all__ = ["Selection", "Workspace", "constrained_select"]

LOGITS = (torch.float32, torch.bfloat16, torch.float16)


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
    max_children: int | None = None,
    workspace: Workspace | None = None,
    out: Selection | None = None,
) -> Selection:
    """Extend each beam by the tokens that its trie node and the request allow; keep the best.

    A candidate scores `scores[b, m] + float32(columns[b, m, token] - logsumexp[b, m])`, the
    difference taken in float64. Higher scores come first, equal ones in node order, which inside a
    level of the trie is SID order. A score of -inf is never chosen. A beam is dead, and ignored
    with all its logits, if its node is negative or its `logsumexp` is not finite.

    All backends return the same bits. The Triton one waits for nothing and has fixed launches and
    memory, so that a CUDA graph may hold it.

    Args:
        columns: float32, bfloat16 or float16 [B, M, V], logits; B at most 32 with `words`.
        logsumexp: float64 [B, M], normaliser of each row over the whole vocabulary.
        scores: float32 [B, M], cumulative log-probabilities of the beams.
        nodes: int64 [B, M], their trie nodes, distinct in a request; -1 marks a dead beam.
        child_offsets: int32 or int64 [inner nodes + 1], bounds of each node's entries.
        child_tokens: int32 [entries], all below V; entry e leads to node e + 1.
        words: int32 [nodes], bit b of word n says whether request b may reach n; None allows all.
        width: how many beams to keep.
        backend: `auto` (native on the CPU, Triton on CUDA), `native`, `triton` or `reference`.
        allowed: instead of `words`, int32 [B, M, ceil(C / 32)], C at least the number of children
            of any of the nodes: bit j % 32 of word j // 32 says whether a beam may reach its
            node's j-th child; see `match_children`.
        max_children: at least the number of children of any of the nodes; by default V, which has
            Triton prepare for more than there are.
        workspace: Triton's memory; by default it is allocated in each call.
        out: where to write the result.

    Raises:
        ValueError: if shapes, dtypes or the backend do not fit.
    """
    _check(columns, logsumexp, scores, nodes, words, allowed, width)
    chosen = choose_backend(backend, columns.device)
    arguments = (columns, logsumexp, scores, nodes, child_offsets, child_tokens, words, allowed)
    if torch.compiler.is_compiling():
        selected = torch.ops.grace.constrained_select(*arguments, width, max_children, chosen)
    elif chosen != "triton":
        selected = _select(*arguments, width, max_children, chosen)
    else:
        from grace.kernels.constrained_select.kernel import select_triton

        out = _empty(columns, width) if out is None else out
        most = columns.shape[2] if max_children is None else max_children
        fields = (out.parents, out.tokens, out.nodes, out.scores)
        select_triton(*arguments, width, most, workspace, fields)
        return out
    if out is None:
        return Selection(*selected)
    for target, source in zip(vars(out).values(), selected, strict=True):
        target.copy_(source)
    return out


def _select(
    columns: Tensor,
    logsumexp: Tensor,
    scores: Tensor,
    nodes: Tensor,
    child_offsets: Tensor,
    child_tokens: Tensor,
    words: Tensor | None,
    allowed: Tensor | None,
    width: int,
    max_children: int | None,
    backend: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    arguments = (columns, logsumexp, scores, nodes, child_offsets, child_tokens, words, allowed)
    if backend == "reference":
        return select_reference(*arguments, width)
    if backend == "triton":
        selection = constrained_select(
            *arguments[:7], width, backend, allowed=allowed, max_children=max_children
        )
        return tuple(vars(selection).values())
    from grace import _native

    # Without .detach() a tensor that a model computed under autograd refuses to become an array.
    arrays = [None if a is None else a.detach().contiguous() for a in arguments]
    arrays = [arrays[0].float(), *arrays[1:]]
    arrays = [None if a is None else a.numpy() for a in arrays]
    return tuple(map(torch.from_numpy, _native.constrained_select(*arrays, width)))


_operator = torch.library.custom_op("grace::constrained_select", _select, mutates_args=())


@_operator.register_fake
def _(
    columns: Tensor,
    logsumexp: Tensor,
    scores: Tensor,
    nodes: Tensor,
    child_offsets: Tensor,
    child_tokens: Tensor,
    words: Tensor | None,
    allowed: Tensor | None,
    width: int,
    max_children: int | None,
    backend: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return tuple(vars(_empty(columns, width)).values())


def _empty(columns: Tensor, width: int) -> Selection:
    shape = (columns.shape[0], width)
    *fields, scores = (
        torch.empty(shape, dtype=dtype, device=columns.device)
        for dtype in (torch.int64, torch.int64, torch.int64, torch.float32)
    )
    return Selection(*fields, scores)


def _check(
    columns: Tensor,
    logsumexp: Tensor,
    scores: Tensor,
    nodes: Tensor,
    words: Tensor | None,
    allowed: Tensor | None,
    width: int,
) -> None:
    if columns.ndim != 3 or columns.dtype not in LOGITS:
        raise ValueError(
            f"columns must be float32, bfloat16 or float16 [B, M, V], got {_form(columns)}"
        )
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
