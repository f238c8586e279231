"""How much memory an index takes on a device, counted before and after it is there."""

from __future__ import annotations

import torch
from torch import Tensor

from grace.errors import ConfigError
from grace.index.index import Index
from grace.index.rules import RangeRules, RuleTables
from grace.index.unions import UNIONS

STAGING = 2**24  # bytes for what grows with a batch, and for what an allocator rounds up


def check_room(index: Index, matching: str, device: torch.device) -> None:
    """Refuse a CUDA device that has too little free memory for an index.

    Raises:
        ConfigError: naming what is needed and what is free.
    """
    needed, free = needed_bytes(index, matching), free_bytes(device)
    if needed > free:
        raise too_little(matching, device, needed, free)


def too_little(matching: str, device: torch.device, needed: int, free: int) -> ConfigError:
    """The refusal."""
    return ConfigError(
        f"device: {device} has {free / 1e9:.2f} GB of free memory, and the index takes "
        f"{needed / 1e9:.2f} GB there while it is set up for matching {matching!r}; end what else "
        "uses the device's memory, choose a mode that takes less ('valid' takes the least) or a "
        "smaller catalogue, or use device 'cpu'"
    )


def free_bytes(device: torch.device) -> int:
    """Return what a CUDA device has left for this process, torch's unused part included."""
    kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return torch.cuda.mem_get_info(device)[0] + kept


def needed_bytes(index: Index, matching: str) -> int:
    """Return at most what a `DeviceIndex` takes while it is made; derives a mode's unions."""
    needed = STAGING + _bytes(index.trie.child_offsets, index.trie.child_tokens)
    if matching in UNIONS:
        needed += _bytes(*vars(index.unions(matching).rows).values())
    if matching == "exact":
        needed += _rule_bytes(index.data.tables) + _ad_bytes(index)
    return needed


def _rule_bytes(tables: RuleTables) -> int:
    """What `ExactOnDevice` makes of the dictionaries."""
    num_signatures, columns = tables.signatures.shape
    held = num_signatures * (columns + 1) * 4 + len(tables.windows) * 20
    longest = 0
    for rules in tables.rules:
        if isinstance(rules, RangeRules):
            held += rules.num_rules * 20
        else:
            lists = (rules.include_values, rules.exclude_values)
            held += rules.num_rules * 21 + len(rules.values) * 8 + _bytes(*lists)
            longest = max(longest, *map(len, lists))
    return held + longest * 40  # a sort of the longest list, with numbers of 64 bits


def _ad_bytes(index: Index) -> int:
    """What it makes of ads and nodes: a word, a signature, and pieces of long segments."""
    offsets = index.data.sid_ad_offsets
    pieces = index.num_ads // 9 + index.trie.num_nodes // 5
    words = index.num_ads + index.trie.num_nodes
    return _bytes(offsets) + words * 4 + pieces * (8 + offsets.dtype.itemsize)


def _bytes(*tensors: Tensor | None) -> int:
    return sum(tensor.nbytes for tensor in tensors if tensor is not None)


def held_bytes(device: torch.device, *parts: object) -> int:
    """Return the bytes of the distinct tensors on a device that parts of the index hold."""
    sizes: dict[int, int] = {}
    seen: set[int] = set()
    left = list(parts)
    while left:
        part = left.pop()
        if id(part) in seen:
            continue
        seen.add(id(part))
        if isinstance(part, Tensor):
            if part.device == device:
                storage = part.untyped_storage()
                sizes[storage.data_ptr()] = storage.nbytes()
        elif isinstance(part, dict):
            left += part.values()
        elif isinstance(part, (list, tuple)):
            left += part
        elif type(part).__module__.startswith("grace."):
            left += getattr(part, "__dict__", {}).values()
    return sum(sizes.values())
