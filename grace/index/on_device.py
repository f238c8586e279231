"""One version of an index on a device, for the search that runs there."""

from __future__ import annotations

import torch

from grace.index.device_matchers import (
    DeviceMatcher,
    ExactOnHost,
    UnionsOnDevice,
    ValidOnDevice,
)
from grace.index.device_memory import (
    check_room,
    free_bytes,
    held_bytes,
    needed_bytes,
    too_little,
)
from grace.index.index import MATCHERS, Index
from grace.index.unions import UNIONS


class DeviceIndex:
    """The trie and one mode's matcher on a device.

    Ads that are paused before a batch begins are in no answer of `exact`, as with `Index.match`.
    Several objects, of one version or of several, stand beside each other and share nothing but the
    index on the CPU. One may be dropped when the last batch that reads it is done.

    Args:
        index: the version; it stays on the CPU as well.
        device: a CUDA device; or the CPU, where almost nothing is copied.
        matching: one of `MATCHERS`.

    Attributes:
        index, device, matching: as given; a CUDA device with its number.
        trie: on the device.
        matcher: of the mode; None for `off`.

    Raises:
        ConfigError: if the device has too little free memory, saying how much is needed.
    """

    def __init__(self, index: Index, device: str | torch.device, matching: str = "exact"):
        if matching not in MATCHERS:
            raise ValueError(f"matching must be one of {', '.join(MATCHERS)}, got {matching!r}")
        self.index = index
        self.matching = matching
        self.device = torch.empty(0, device=device).device  # "cuda" is a device without a number
        if self.device.type == "cuda":
            check_room(index, matching, self.device)
        try:
            self.trie = index.trie.to(self.device)
            self.matcher = self._new_matcher()
        except torch.OutOfMemoryError:  # others took it in between, or it is in pieces
            needed, free = needed_bytes(index, matching), free_bytes(self.device)
            raise too_little(matching, self.device, needed, free) from None

    def _new_matcher(self) -> DeviceMatcher | None:
        index, child_offsets = self.index, self.trie.child_offsets
        if self.matching == "off":
            return None
        if self.matching == "valid":
            return ValidOnDevice(self.device)
        if self.matching in UNIONS:
            return UnionsOnDevice(index.unions(self.matching), child_offsets)
        if self.device.type == "cpu":
            return ExactOnHost(index.exact)
        from grace.index.exact_device import ExactOnDevice

        data = index.data
        with torch.cuda.device(self.device):
            return ExactOnDevice(
                data.tables, data.trie, data.sid_ad_offsets, data.ad_signatures, index.ad_state,
                self.device, child_offsets=child_offsets, subscribe=index.subscribe,
            )  # fmt: skip

    @property
    def num_bytes(self) -> int:
        """Bytes of all arrays on the device; on the CPU most of them are the index's own."""
        return held_bytes(self.device, self.trie, self.matcher)
