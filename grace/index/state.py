"""Whether each ad may be shown now: a byte per ad that changes while requests are answered."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from grace.index import state_log
from grace.index.state_log import FLAGS


class AdStates:
    """The ads' states: the catalogue's, then what the log in the index's directory says.

    A change writes each ad's byte once, from its old state to its last, so a reader beside it sees
    the one or the other. A matcher reads the states before decoding and the last filter after it:
    an ad that was switched off before a batch began is in no answer of the batch. One that changes
    while the batch runs may be in it or not.

    Attributes:
        flags: uint8 [num_ads], `FLAGS` or-ed together; 0 where the ad is live. Changed in place.
    """

    def __init__(
        self,
        paused: Tensor,
        find_ads: Callable[[Sequence[object]], np.ndarray],
        directory: Path | None,
    ):
        self.flags = (paused != 0).to(torch.uint8) * FLAGS["paused"]
        self._find_ads = find_ads
        self._directory = directory
        self._log = None if directory is None else state_log.LogReader(directory)
        self._changing = threading.RLock()  # re-entrant: a callback may ask for the state
        self._callbacks: list[Callable[[np.ndarray], None]] = []
        self.catch_up()

    def change(self, flag: str, on: bool, ad_ids: Sequence[str | int]) -> None:
        """Switch one flag of ads that the index has; on return the next batch sees it."""
        if self._directory is None:
            with self._changing:
                self._apply({flag: dict.fromkeys(ad_ids, on)})
        else:
            # Unlocked: a batch that catches up meanwhile does not wait for the disk.
            state_log.append(self._directory, flag, on, ad_ids)
            self.catch_up()  # other processes' lines too, in the log's order

    def catch_up(self) -> None:
        """Apply what the log says since the last time, whoever wrote it; costs a `stat` if nothing.

        Raises:
            IndexFormatError: if the log is damaged, naming the line.
        """
        if self._log is not None:
            with self._changing:
                self._apply(self._log.read())

    def subscribe(self, callback: Callable[[np.ndarray], None]) -> None:
        """Call `callback(positions)` after each change, with the ads whose `flags` changed.

        For copies of `flags` on a device: subscribe, then copy everything once. Calls come one at
        a time, before the change is acknowledged; positions are int64 [n], ascending.
        """
        with self._changing:
            self._callbacks.append(callback)

    def _apply(self, states: state_log.States) -> None:
        switched = []
        for flag, ads in states.items():
            positions = self._find_ads(list(ads))
            on = np.fromiter(ads.values(), bool, len(ads))
            known = positions >= 0  # the log outlives versions that had the ad
            switched.append((np.uint8(FLAGS[flag]), positions[known], on[known]))
        if not switched:
            return
        flags = self.flags.numpy()
        touched = np.unique(np.concatenate([positions for _, positions, _ in switched]))
        after = flags[touched]
        for bit, positions, on in switched:
            rows = np.searchsorted(touched, positions)
            after[rows] = np.where(on, after[rows] | bit, after[rows] & ~bit)
        changed = flags[touched] != after
        touched = touched[changed]
        flags[touched] = after[changed]
        if len(touched):
            for callback in self._callbacks:
                callback(touched)
