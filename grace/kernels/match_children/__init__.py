"""Which children of each beam's node a request may enter, by unions of its ads' bits."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from grace.kernels.match_children.reference import match_reference
from grace.kernels.words import choose_backend


@dataclass(frozen=True)
class UnionRows:
    """The rows of all S nodes: a node has partitions, a partition a bitmask and a Bloom row.

    Attributes:
        partition_offsets: int32 or int64 [S + 1], bounds of each node's partitions; None where
            node n has just partition n.
        bitmask_index, bloom_index: int32 [number of partitions], rows of the two tables.
        bitmask_rows: int64 [R, W].
        bloom_rows: int64 [R', sets * w / 64], a filter for each set attribute side by side.
        other_bits: int64 [sets], the bit of a bitmask row that says that an ad takes any place.
    """

    partition_offsets: Tensor | None
    bitmask_index: Tensor
    bloom_index: Tensor
    bitmask_rows: Tensor
    bloom_rows: Tensor
    other_bits: Tensor

    def to(self, device: str | torch.device) -> UnionRows:
        """Return the rows on a device."""
        return _moved(self, device)


@dataclass(frozen=True)
class RequestMasks:
    """What B requests ask of a partition.

    Attributes:
        want: int64 [B, W], bits that its bitmask row must hold (equation 5).
        places: int64 [B, sets, P, w / 64], the filter of each single value; P at least 1.
        num_places: int32 [B, sets], how many of the P count; -1 where the attribute is unknown and
            `want` alone decides.
    """

    want: Tensor
    places: Tensor
    num_places: Tensor

    def to(self, device: str | torch.device) -> RequestMasks:
        """Return the masks on a device."""
        return _moved(self, device)


def match_children(
    nodes: Tensor,
    child_offsets: Tensor,
    rows: UnionRows,
    masks: RequestMasks,
    backend: str = "auto",
    max_children: int | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """Test the children of each beam's node.

    A child passes if any of its partitions does. A partition passes if its bitmask row holds all
    wanted bits and, for each known set attribute, its bitmask row has the `other` bit or its filter
    holds all bits of at least one of the request's places (equation 8).

    With `max_children` the Triton backend waits for nothing and launches one kernel of fixed size,
    so that a CUDA graph may hold it.

    Args:
        nodes: int64 [B, M], trie nodes that have children; -1 marks a dead beam.
        child_offsets: int32 or int64 [inner nodes + 1], bounds of each node's entries; entry e
            leads to node e + 1.
        rows: of all nodes.
        masks: of the B requests.
        backend: `auto` (native on the CPU, Triton on CUDA), `native`, `triton` or `reference`.
        max_children: C, at least the number of children of any of the nodes, see
            `Trie.most_children`. By default C is that number, for which the call waits. Triton
            takes it on trust and leaves further children out.
        out: where to write the result; contiguous, and with `max_children` only.

    Returns:
        int32 [B, M, ceil(C / 32)]: bit j % 32 of word j // 32 is set if the j-th child passes. A
        dead beam has none.

    Raises:
        ValueError: if shapes, dtypes, devices or the backend do not fit.
    """
    _check(nodes, child_offsets, rows, masks)
    if out is not None:
        _check_out(out, nodes, max_children)
    chosen = choose_backend(backend, nodes.device)
    arguments = (nodes, child_offsets, *vars(rows).values(), *vars(masks).values())
    if torch.compiler.is_compiling():
        allowed = torch.ops.grace.match_children(*arguments, max_children, chosen)
    elif chosen == "triton":
        return _triton(nodes, child_offsets, rows, masks, max_children, out)
    else:
        allowed = _match(*arguments, max_children, chosen)
    return allowed if out is None else out.copy_(allowed)


def _match(
    nodes: Tensor,
    child_offsets: Tensor,
    partition_offsets: Tensor | None,
    bitmask_index: Tensor,
    bloom_index: Tensor,
    bitmask_rows: Tensor,
    bloom_rows: Tensor,
    other_bits: Tensor,
    want: Tensor,
    places: Tensor,
    num_places: Tensor,
    max_children: int | None,
    backend: str,
) -> Tensor:
    rows = UnionRows(
        partition_offsets, bitmask_index, bloom_index, bitmask_rows, bloom_rows, other_bits
    )
    masks = RequestMasks(want, places, num_places)
    if backend == "triton":
        return _triton(nodes, child_offsets, rows, masks, max_children, None)
    most = _most_children(nodes, child_offsets)
    if max_children is not None and max_children < most:
        raise ValueError(
            f"max_children must be at least {most}, a node has so many: {max_children}"
        )
    num_words = _num_words(most if max_children is None else max_children)
    if backend == "reference":
        return match_reference(nodes, child_offsets, rows, masks, num_words)
    from grace import _native

    fields = (
        nodes, child_offsets, partition_offsets, bitmask_index, bloom_index, bitmask_rows,
        bloom_rows, want, places, num_places, other_bits,
    )  # fmt: skip
    # A step of few tests is over before a thread has started.
    workers = torch.get_num_threads() if nodes.numel() * num_words > 1024 else 1
    arrays = [None if field is None else field.contiguous().numpy() for field in fields]
    allowed = torch.from_numpy(_native.match_children(*arrays, num_words, workers))
    return allowed.reshape(*nodes.shape, num_words)


_operator = torch.library.custom_op("grace::match_children", _match, mutates_args=())


@_operator.register_fake
def _(
    nodes: Tensor,
    child_offsets: Tensor,
    partition_offsets: Tensor | None,
    bitmask_index: Tensor,
    bloom_index: Tensor,
    bitmask_rows: Tensor,
    bloom_rows: Tensor,
    other_bits: Tensor,
    want: Tensor,
    places: Tensor,
    num_places: Tensor,
    max_children: int | None,
    backend: str,
) -> Tensor:
    if max_children is None:
        num_words = torch.library.get_ctx().new_dynamic_size()
    else:
        num_words = _num_words(max_children)
    return nodes.new_empty((*nodes.shape, num_words), dtype=torch.int32)


def _triton(
    nodes: Tensor,
    child_offsets: Tensor,
    rows: UnionRows,
    masks: RequestMasks,
    max_children: int | None,
    out: Tensor | None,
) -> Tensor:
    from grace.kernels.match_children.kernel import INTERPRETED, match_triton

    if nodes.device.type != "cuda" and not INTERPRETED:
        raise ValueError("the triton backend needs a CUDA device or TRITON_INTERPRET=1")
    most = _most_children(nodes, child_offsets) if max_children is None else max_children
    return match_triton(nodes, child_offsets, rows, masks, _num_words(most), out)


def _most_children(nodes: Tensor, child_offsets: Tensor) -> int:
    start = nodes.clamp_min(0)
    children = torch.where(nodes < 0, 0, child_offsets[start + 1] - child_offsets[start])
    return int(children.max()) if children.numel() else 0


def _num_words(children: int) -> int:
    return -(-children // 32)


def _moved(part: UnionRows | RequestMasks, device: str | torch.device) -> object:
    tensors = {k: v.to(device) for k, v in vars(part).items() if v is not None}
    return replace(part, **tensors)


def _check(nodes: Tensor, child_offsets: Tensor, rows: UnionRows, masks: RequestMasks) -> None:
    batch, beams = nodes.shape if nodes.ndim == 2 else (len(masks.want), 1)
    num_slots = len(rows.other_bits)
    most = masks.places.shape[2] if masks.places.ndim == 4 else 1
    filter_words = masks.places.shape[-1]
    expected = {
        "nodes": (nodes, torch.int64, (batch, beams)),
        "want": (masks.want, torch.int64, (batch, rows.bitmask_rows.shape[1])),
        "places": (masks.places, torch.int64, (batch, num_slots, most, filter_words)),
        "num_places": (masks.num_places, torch.int32, (batch, num_slots)),
        "bloom_rows": (
            rows.bloom_rows,
            torch.int64,
            (len(rows.bloom_rows), num_slots * filter_words),
        ),
    }
    for name, (tensor, dtype, shape) in expected.items():
        if tensor.dtype != dtype or tuple(tensor.shape) != shape:
            raise ValueError(
                f"{name} must be {_dtype(dtype)} {list(shape)}, got {_dtype(tensor.dtype)} "
                f"{list(tensor.shape)}"
            )
    if child_offsets.dtype not in (torch.int32, torch.int64):
        raise ValueError(f"child_offsets must be int32 or int64, got {_dtype(child_offsets.dtype)}")
    for name, tensor in (*vars(rows).items(), *vars(masks).items()):
        if tensor is not None and tensor.device != nodes.device:
            raise ValueError(f"{name} is on {tensor.device}, nodes are on {nodes.device}")


def _check_out(out: Tensor, nodes: Tensor, max_children: int | None) -> None:
    if max_children is None:
        raise ValueError("out needs max_children, which says how many words it has")
    shape = (*nodes.shape, _num_words(max_children))
    fits = out.dtype == torch.int32 and out.shape == shape and out.device == nodes.device
    if not fits or not out.is_contiguous():
        raise ValueError(
            f"out must be contiguous int32 {list(shape)} on {nodes.device}, got "
            f"{_dtype(out.dtype)} {list(out.shape)} on {out.device}"
        )


def _dtype(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
