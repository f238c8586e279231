"""Which children of each beam's node a request may enter, by unions of its ads' bits."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from grace.kernels.match_children.reference import match_reference


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
) -> Tensor:
    """Test the children of each beam's node.

    A child passes if any of its partitions does. A partition passes if its bitmask row holds all
    wanted bits and, for each known set attribute, its bitmask row has the `other` bit or its filter
    holds all bits of at least one of the request's places (equation 8).

    Args:
        nodes: int64 [B, M], trie nodes that have children; -1 marks a dead beam.
        child_offsets: int32 or int64 [inner nodes + 1], bounds of each node's entries; entry e
            leads to node e + 1.
        rows: of all nodes.
        masks: of the B requests.
        backend: `auto` (native on the CPU, Triton on CUDA), `native`, `triton` or `reference`.

    Returns:
        int32 [B, M, ceil(C / 32)], C the largest number of children among the nodes: bit j % 32 of
        word j // 32 is set if the j-th child passes. A dead beam has none.

    Raises:
        ValueError: if shapes, dtypes, devices or the backend do not fit.
    """
    _check(nodes, child_offsets, rows, masks)
    on_cuda = nodes.device.type == "cuda"
    if backend == "auto":
        backend = {"cpu": "native", "cuda": "triton"}.get(nodes.device.type, "reference")
    if backend not in ("native", "triton", "reference"):
        raise ValueError(f"backend must be auto, native, triton or reference, got {backend!r}")
    start = nodes.clamp_min(0)
    children = torch.where(nodes < 0, 0, child_offsets[start + 1] - child_offsets[start])
    num_words = -(-int(children.max()) // 32) if children.numel() else 0
    if backend == "reference":
        return match_reference(nodes, child_offsets, rows, masks, num_words)
    if backend == "triton":
        from grace.kernels.match_children.kernel import INTERPRETED, match_triton

        if not on_cuda and not INTERPRETED:
            raise ValueError("the triton backend needs a CUDA device or TRITON_INTERPRET=1")
        return match_triton(nodes, child_offsets, rows, masks, num_words)
    from grace import _native

    fields = (
        nodes, child_offsets, rows.partition_offsets, rows.bitmask_index, rows.bloom_index,
        rows.bitmask_rows, rows.bloom_rows, masks.want, masks.places, masks.num_places,
        rows.other_bits,
    )  # fmt: skip
    # A step of few tests is over before a thread has started.
    workers = torch.get_num_threads() if nodes.numel() * num_words > 1024 else 1
    arrays = [None if field is None else field.contiguous().numpy() for field in fields]
    allowed = torch.from_numpy(_native.match_children(*arrays, num_words, workers))
    return allowed.reshape(*nodes.shape, num_words)


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


def _dtype(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
