"""Arrays of the exact matcher's benchmarks: the paper's sizes or a fraction, from a seed.

The arrays are drawn as an index holds them, so no catalogue is read: SIDs of 4 tokens below 512,
most with one ad and a few with very many, signatures and place lists numbered by first appearance
along the ads. At scale 1: 4·10^7 ads, 3·10^7 SIDs, 8·10^6 signatures of six rules and a window,
5.1·10^6 place lists of 6 values on average among 70,000. A tenth of the lists excludes, a tenth of
the signatures has a window, 2 % of the ads are paused. Requests carry 64 places each.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from grace.catalog import Schema, Targeting
from grace.index.lookup import TextTable
from grace.index.rules import CompiledTargeting, RangeRules, RuleTables, ValueRules
from grace.index.trie import Trie

ADS, SIDS, SIGNATURES, PLACE_LISTS, PLACES = 40_000_000, 30_000_000, 8_000_000, 5_100_000, 70_000
LEVELS, TOKEN_BITS = 4, 9
DAY = 86_400_000_000  # microseconds
SMALL = {"country": 250, "gender": 2, "language": 40, "interest": 400}  # values of the others
SCHEMA = Schema.from_dict(
    {
        "attributes": [
            {"name": "country", "kind": "categorical"},
            {"name": "gender", "kind": "categorical"},
            {"name": "age", "kind": "range"},
            {"name": "language", "kind": "set"},
            {"name": "interest", "kind": "set"},
            {"name": "place", "kind": "set"},
        ]
    }
)


@dataclass(frozen=True)
class Arrays:
    """What the exact matcher reads of an index, on the CPU, and requests to match."""

    tables: RuleTables
    trie: Trie
    sid_ad_offsets: Tensor
    ad_signatures: Tensor
    ad_state: Tensor
    requests: list[CompiledTargeting]

    @property
    def matcher_arguments(self) -> tuple:
        """Everything but the requests."""
        return self.tables, self.trie, self.sid_ad_offsets, self.ad_signatures, self.ad_state

    @property
    def counts(self) -> dict[str, int]:
        """Sizes, for the record."""
        places = self.tables.rules[-1]
        return {
            "ads": len(self.ad_signatures),
            "sids": len(self.sid_ad_offsets) - 1,
            "nodes": self.trie.num_nodes,
            "signatures": len(self.tables.signatures),
            "columns": self.tables.signatures.shape[1],
            "place_lists": places.num_rules,
            "listed_places": len(places.include_values) + len(places.exclude_values),
            "windows": len(self.tables.windows),
            "requests": len(self.requests),
            "places_per_request": len(self.requests[0].value_ids[-1]),
        }


class Maker:
    """Draws arrays on a device, and hands them over on the CPU."""

    def __init__(self, scale: float, num_requests: int, seed: int, device: str):
        self.scale, self.num_requests, self.device = scale, num_requests, device
        self.random = torch.Generator(device).manual_seed(seed)
        self.numpy = np.random.default_rng(seed)

    def arrays(self) -> Arrays:
        """Draw everything."""
        num_ads, num_sids = self.size(ADS), self.size(SIDS)
        trie = random_trie(num_sids, 1 << TOKEN_BITS, LEVELS, self.random)
        num_sids = trie.level_sizes[-1]
        extra = self.uniform(num_ads - num_sids).square() * num_sids  # a heavy tail
        extra = (extra.long() * 1_000_003) % num_sids  # its SIDs anywhere in the order
        ads_of = 1 + torch.bincount(extra, minlength=num_sids)
        tables = self.tables()
        ad_signatures = self.by_appearance(num_ads, len(tables.signatures))
        return Arrays(
            tables=tables,
            trie=trie,
            sid_ad_offsets=offsets_of(ads_of),
            ad_signatures=ad_signatures.cpu(),
            ad_state=(self.uniform(num_ads) < 0.02).to(torch.uint8).cpu(),
            requests=[tables.compile(self.targeting()) for _ in range(self.num_requests)],
        )

    def size(self, full: int) -> int:
        """That share of a full size."""
        return max(int(full * self.scale), 2)

    def uniform(self, *shape: int) -> Tensor:
        """float64 in [0, 1)."""
        return torch.rand(shape, generator=self.random, device=self.device, dtype=torch.float64)

    def by_appearance(self, size: int, distinct: int) -> Tensor:
        """int32 [size]: numbers below `distinct`, each new one the next, old ones at random."""
        new = torch.zeros(size, dtype=torch.bool, device=self.device)
        new[torch.randperm(size, generator=self.random, device=self.device)[:distinct]] = True
        new[0] = True
        seen = torch.cumsum(new, 0)
        old = (self.uniform(size) * seen).long()
        return torch.where(new, seen - 1, old).clamp(max=distinct - 1).int()

    def tables(self) -> RuleTables:
        """Rules, windows and signatures."""
        num_signatures = self.size(SIGNATURES)
        ages = 10.0 + 5 * torch.arange(15, dtype=torch.float64)
        low, high = torch.cartesian_prod(ages, ages).T
        low, high = low[low < high], high[low < high]
        infinite = torch.full((1,), torch.inf, dtype=torch.float64)
        rules = (
            self.values("country", 300, 3, 0.1),
            self.values("gender", 3, 1, 0.0),
            RangeRules(torch.cat([-infinite, low]), torch.cat([infinite, high])),
            self.values("language", 100, 3, 0.1),
            self.values("interest", 5_000, 4, 0.1),
            self.values("place", self.size(PLACE_LISTS), 6, 0.1),
        )
        num_windows = max(num_signatures // 10, 1)
        starts = self.numpy.integers(0, 60 * DAY, num_windows)
        windows = np.stack([starts, starts + self.numpy.integers(1, 30 * DAY, num_windows)], 1)
        windows[0] = -(2**63), 2**63 - 1
        columns = [
            torch.where(
                self.uniform(num_signatures) < 0.5,
                (self.uniform(num_signatures) * table.num_rules).int(),
                0,
            )
            for table in rules[:-1]
        ]
        columns.append(self.by_appearance(num_signatures, rules[-1].num_rules))
        timed = self.uniform(num_signatures) < 0.1
        window = (self.uniform(num_signatures) * num_windows).int()
        columns.append(torch.where(timed, window, 0))
        signatures = torch.stack(columns, 1).int().cpu()
        return RuleTables(SCHEMA, rules, torch.from_numpy(windows), signatures)

    def values(self, name: str, num_rules: int, mean: int, exclude_rate: float) -> ValueRules:
        """Lists of uniform values, 1 to 2 · mean - 1 of them."""
        num_values = SMALL.get(name, PLACES)
        sizes = torch.floor(1 + self.uniform(num_rules) * (2 * mean - 1)).long()
        sizes[0] = 0
        excluding = self.uniform(num_rules) < exclude_rate
        sides = []
        for counts in (sizes * ~excluding, sizes * excluding):
            listed = (self.uniform(int(counts.sum())) * num_values).int().cpu()
            sides += [offsets_of(counts), listed]
        names = pa.array([f"{name} {i}" for i in range(num_values)], pa.large_string())
        texts = TextTable.build(names)
        return ValueRules(texts, *sides)

    def targeting(self) -> Targeting:
        """One request: 64 distinct places, a value or a few of everything else."""

        def some(name: str, count: int, below: int) -> tuple[str, ...]:
            numbers = self.numpy.choice(below, count, replace=False)
            return tuple(f"{name} {number}" for number in numbers)

        values = (
            some("country", 1, SMALL["country"]),
            some("gender", 1, SMALL["gender"]),
            float(self.numpy.integers(13, 80)),
            some("language", 2, SMALL["language"]),
            some("interest", 40, SMALL["interest"]),
            some("place", 64, PLACES),
        )
        return Targeting(values, int(self.numpy.integers(0, 60 * DAY)))


def random_trie(num_sids: int, vocab: int, levels: int, random: torch.Generator) -> Trie:
    """The trie of random SIDs, drawn on the generator's device; those that coincide count once."""
    keys = torch.randint(vocab**levels, (num_sids,), generator=random, device=random.device)
    keys = torch.unique(keys)
    sizes, counts, tokens = [len(keys)], [], []
    for _ in range(levels):
        tokens.append((keys % vocab).int().cpu())
        keys, children = torch.unique_consecutive(keys // vocab, return_counts=True)
        counts.append(children)
        sizes.append(len(keys))
    bounds = np.cumsum([0, *reversed(sizes)])
    return Trie(
        level_offsets=torch.from_numpy(bounds),
        child_offsets=offsets_of(torch.cat(counts[::-1])),
        child_tokens=torch.cat(tokens[::-1]),
    )


def offsets_of(counts: Tensor) -> Tensor:
    """int32 on the CPU, the running sum of counts."""
    ends = torch.cumsum(counts, 0)
    return torch.cat([ends.new_zeros(1), ends]).int().cpu()
