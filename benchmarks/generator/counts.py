"""What a catalogue holds, counted while it is made."""

from __future__ import annotations

import numpy as np

from benchmarks.generator.draw import distinct
from benchmarks.generator.spec import NUM_CODES, NUM_LEVELS
from benchmarks.generator.table import Chunk


class Tally:
    """Adds chunks up. Holds 8 bytes an ad and 8 a distinct rule, not the ads."""

    DISTINCT = ("attribute_rows", "place_lists", "signatures")
    SUMS = ("num_windows", "num_exclusions", "num_places", "num_paused", "place_values")

    def __init__(self, num_ads: int):
        self.sids = np.empty(num_ads, np.int64)
        self.ads = 0
        self.sums = dict.fromkeys(self.SUMS, 0)
        self.longest_list = 0
        self.distinct = {name: np.zeros(0, np.uint64) for name in self.DISTINCT}
        self._pending: dict[str, list[np.ndarray]] = {name: [] for name in self.DISTINCT}

    def add(self, chunk: Chunk) -> None:
        """Count a chunk."""
        self.sids[self.ads : self.ads + len(chunk.sids)] = chunk.sids
        self.ads += len(chunk.sids)
        for name in self.SUMS:
            self.sums[name] += getattr(chunk, name)
        self.longest_list = max(self.longest_list, chunk.longest_list)
        for name in self.DISTINCT:
            pending = self._pending[name]
            pending.append(getattr(chunk, name))
            # Merged when as many have come as there are, so that the work stays linear.
            if sum(map(len, pending)) > max(len(self.distinct[name]), 1 << 20):
                self._merge(name)

    def finish(self) -> dict[str, int | float]:
        """Return the counts; call once, after the last chunk."""
        for name in self.DISTINCT:
            self._merge(name)
        keys = self.sids[: self.ads]
        keys.sort()
        starts = np.flatnonzero(np.concatenate([[True], keys[1:] != keys[:-1]]))
        ads_per_sid = np.diff(starts, append=self.ads)
        sids = keys[starts]
        nodes = [
            int(np.count_nonzero(np.diff(sids // NUM_CODES ** (NUM_LEVELS - level)))) + 1
            for level in range(1, NUM_LEVELS)
        ]
        p50, p99 = np.quantile(ads_per_sid, [0.5, 0.99], method="inverted_cdf")
        num_places = self.sums["num_places"]
        return {
            "ads": self.ads,
            "distinct SIDs": len(starts),
            **{f"prefixes of length {level + 1}": count for level, count in enumerate(nodes)},
            "ads per SID, median": int(p50),
            "ads per SID, 99th percentile": int(p99),
            "ads per SID, most": int(ads_per_sid.max()),
            "distinct attribute rows": len(self.distinct["attribute_rows"]),
            "distinct place lists": len(self.distinct["place_lists"]),
            "distinct signatures": len(self.distinct["signatures"]),
            "places per list, mean": round(self.sums["place_values"] / max(num_places, 1), 3),
            "places per list, most": self.longest_list,
            "share with places": self.sums["num_places"] / self.ads,
            "share with a window": self.sums["num_windows"] / self.ads,
            "share with exclusions": self.sums["num_exclusions"] / self.ads,
            "share paused": self.sums["num_paused"] / self.ads,
        }

    def _merge(self, name: str) -> None:
        self.distinct[name] = distinct(np.concatenate([self.distinct[name], *self._pending[name]]))
        self._pending[name] = []
