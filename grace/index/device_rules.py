"""One attribute's distinct rules on a device, and how their words are computed there."""

from __future__ import annotations

import numpy as np
import torch
import triton
from torch import Tensor

from grace.index.batch import Batch
from grace.index.rules import RangeRules, ValueRules
from grace.kernels.rule_words import kernel
from grace.kernels.words import MAX_REQUESTS

Forms = dict[str, tuple[torch.dtype, tuple[int, ...]]]
PROGRAMS = 1056  # of the postings' kernel, eight for each processor of an H200


class DeviceIntervals:
    """Rules that accept an interval: a range attribute, or the windows.

    Args:
        name: of its arrays in the staging area.
        low, high: float64 or int64 [R].
        closed: whether the interval holds its upper end.
        device: where the words are computed.
    """

    def __init__(self, name: str, low: Tensor, high: Tensor, closed: bool, device: torch.device):
        self.name = name
        self.low, self.high = low.contiguous().to(device), high.contiguous().to(device)
        self.closed = closed
        self.words = torch.empty(len(low), dtype=torch.int32, device=device)

    @staticmethod
    def of_range(name: str, rules: RangeRules, device: torch.device) -> DeviceIntervals:
        """The rules of a range attribute."""
        return DeviceIntervals(name, rules.min, rules.max, True, device)

    def forms(self, capacity: int) -> Forms:
        """What a batch brings: where each request stands."""
        return {self.name: (self.low.dtype, (MAX_REQUESTS,))}

    def fill(self, host: dict[str, Tensor], points: np.ndarray) -> None:
        """Write a batch's points, [B]."""
        host[self.name].numpy()[: len(points)] = points

    def enqueue(self, staged: dict[str, Tensor]) -> None:
        """Compute `words` on the current stream."""
        kernel.interval_words_triton(
            self.low, self.high, staged[self.name], self.closed, staged["everyone"], self.words,
            staged["num_requests"],
        )  # fmt: skip


class DeviceValues:
    """Rules of a categorical or set attribute.

    Args:
        attribute: its number, which names its arrays in the staging area.
        rules: the rules, on the CPU.
        device: where the words are computed.
        postings: read the rules that name a value, for each value that some request carries,
            instead of the values of each rule. Less work where requests carry few of the values.
    """

    def __init__(self, attribute: int, rules: ValueRules, device: torch.device, postings: bool):
        self.attribute = attribute
        self.words = torch.empty(rules.num_rules, dtype=torch.int32, device=device)
        sides = (
            (rules.include_offsets.numpy(), rules.include_values.numpy()),
            (rules.exclude_offsets.numpy(), rules.exclude_values.numpy()),
        )
        most = max(len(values) for _, values in sides)
        # Positions among postings are 32-bit there.
        self.postings = postings and most < 2**31
        if self.postings:
            self._asks = rules.has_include.to(torch.uint8).to(device)
            self._sides = [_Postings(*side, len(rules.values), device) for side in sides]
        else:
            self._lists = [torch.from_numpy(array).to(device) for side in sides for array in side]
            longest = np.maximum(*(np.diff(offsets) for offsets, _ in sides))
            long = np.flatnonzero(longest > kernel.LONG).astype(np.int32)
            self._long = torch.from_numpy(long).to(device)
            self._carried = torch.zeros(max(len(rules.values), 1), dtype=torch.int32, device=device)

    def forms(self, capacity: int) -> Forms:
        """What a batch brings: the values carried, by whom, and how many postings they have."""
        names = ("values", "words", "include_ends", "exclude_ends")
        lists = {self._name(name): (torch.int32, (capacity,)) for name in names}
        return lists | {self._name(name): (torch.int32, (1,)) for name in ("known", "count")}

    def fill(self, host: dict[str, Tensor], batch: Batch) -> None:
        """Write a batch's carried values, at most as many as the capacity."""
        values, words = batch.carried[self.attribute]
        host[self._name("known")][0] = int(batch.known[self.attribute])
        host[self._name("count")][0] = len(values)
        host[self._name("values")].numpy()[: len(values)] = values
        host[self._name("words")].numpy()[: len(values)] = words
        if self.postings:
            for name, side in zip(("include_ends", "exclude_ends"), self._sides, strict=True):
                ends = np.cumsum(side.lengths[values])
                host[self._name(name)].numpy()[: len(values)] = ends

    def enqueue(self, staged: dict[str, Tensor]) -> None:
        """Compute `words` on the current stream."""
        known, everyone = staged[self._name("known")], staged["everyone"]
        values, words, count = (staged[self._name(n)] for n in ("values", "words", "count"))
        if not self.postings:
            self._carried.zero_()
            kernel.scatter_carried[(1,)](
                values, words, count, self._carried, CAPACITY=len(values), num_warps=8
            )
            kernel.value_words_triton(
                *self._lists, self._carried, known, everyone, self.words, self._long
            )
            return
        kernel.fill_rules[(triton.cdiv(len(self.words), 1024),)](
            self._asks, known, everyone, self.words, len(self.words), BLOCK=1024, num_warps=4
        )
        names = ("include_ends", "exclude_ends")
        for exclude, (name, side) in enumerate(zip(names, self._sides, strict=True)):
            if len(side.rules):
                programs = min(PROGRAMS, triton.cdiv(len(side.rules), 256))
                kernel.scatter_postings[(programs,)](
                    values, words, staged[self._name(name)], count, side.offsets, side.rules,
                    self.words, EXCLUDE=bool(exclude), LOG_CAPACITY=len(values).bit_length(),
                    BLOCK=256, num_warps=4,
                )  # fmt: skip

    def _name(self, name: str) -> str:
        return f"{name} {self.attribute}"


class DeviceMasks:
    """Rules of an attribute with at most 64 values, as bits: what each includes and excludes.

    Where values are few, each is named by many rules and carried by many requests, so that neither
    lists nor postings would be short.

    Args:
        attribute: its number, which names its arrays in the staging area.
        rules: the rules, on the CPU.
        device: where the words are computed.
    """

    MOST_VALUES = 64

    def __init__(self, attribute: int, rules: ValueRules, device: torch.device):
        self.attribute = attribute
        self.words = torch.empty(rules.num_rules, dtype=torch.int32, device=device)
        self._masks = [
            torch.from_numpy(_bits_of_lists(offsets.numpy(), values.numpy())).to(device)
            for offsets, values in (
                (rules.include_offsets, rules.include_values),
                (rules.exclude_offsets, rules.exclude_values),
            )
        ]

    def forms(self, capacity: int) -> Forms:
        """What a batch brings: the values that each request carries, and who carries any."""
        return {
            self._name("carried"): (torch.int64, (MAX_REQUESTS,)),
            self._name("known"): (torch.int32, (1,)),
        }

    def fill(self, host: dict[str, Tensor], batch: Batch) -> None:
        """Write a batch's carried values."""
        values, words = batch.carried[self.attribute]
        carries = words.view(np.uint32)[:, None] >> np.arange(MAX_REQUESTS, dtype=np.uint32) & 1
        bits = np.uint64(1) << values.astype(np.uint64)
        masks = np.bitwise_or.reduce(carries * bits[:, None], axis=0, initial=np.uint64(0))
        host[self._name("carried")].numpy()[:] = masks.view(np.int64)
        host[self._name("known")][0] = int(batch.known[self.attribute])

    def enqueue(self, staged: dict[str, Tensor]) -> None:
        """Compute `words` on the current stream."""
        kernel.mask_rules[(triton.cdiv(len(self.words), 512),)](
            *self._masks, staged[self._name("carried")], staged["num_requests"],
            staged[self._name("known")], staged["everyone"], self.words, len(self.words),
            BLOCK=512, num_warps=4,
        )  # fmt: skip

    def _name(self, name: str) -> str:
        return f"{name} {self.attribute}"


def _bits_of_lists(offsets: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Return int64 [R], bit v set where the list holds v."""
    masks = np.zeros(len(offsets) - 1, np.uint64)
    filled = offsets[1:] > offsets[:-1]
    if filled.any():
        bits = np.uint64(1) << values.astype(np.uint64)
        masks[filled] = np.bitwise_or.reduceat(bits, offsets[:-1][filled])
    return masks.view(np.int64)


class _Postings:
    """The rules that name each value: CSR by value; `lengths` stays on the CPU."""

    def __init__(
        self, offsets: np.ndarray, values: np.ndarray, num_values: int, device: torch.device
    ):
        by_value = torch.sort(torch.from_numpy(values).to(device), stable=True)
        sizes = torch.from_numpy(np.diff(offsets)).to(device)
        numbers = torch.arange(len(sizes), dtype=torch.int32, device=device)
        self.rules = torch.repeat_interleave(numbers, sizes)[by_value.indices]
        self.lengths = np.bincount(values, minlength=num_values)
        ends = np.concatenate([[0], np.cumsum(self.lengths)]).astype(np.int32)
        self.offsets = torch.from_numpy(ends).to(device)
