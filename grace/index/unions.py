"""GRACE's matchers (sections 3.2-3.5): unions of ads' bitmasks and Bloom filters at every node.

A union forgets which ad set which bit, so a row may pass without one ad that accepts (equations 6
and 7); it never fails while there is such an ad. Partitions (section 3.3) split what is under a
node into several unions. Windows and pauses are no part of a row, so that they can change without a
rebuild.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from grace import _native
from grace.catalog import Schema
from grace.index.bitmask import BitLayout, bit_layout, range_intervals, request_flags
from grace.index.bits import pack_bits
from grace.index.bloom import BloomShape, bloom_words
from grace.index.lookup import TextTable
from grace.index.rules import CompiledTargeting, RangeRules, RuleTables
from grace.index.trie import Trie
from grace.index.verdict import Verdict
from grace.kernels.match_children import RequestMasks, UnionRows, match_children


@dataclass(frozen=True)
class Partitioning:
    """Into how many unions the SIDs under a node, or the ads of a full SID, are split.

    Units are dealt in order, each to the partition that has the fewest set bits once it is in, the
    first of equals. The root has one partition: no child entry leads to it.

    Attributes:
        most: the most partitions of a node of prefix length 1, 2, ...; the last number stands for
            all longer prefixes.
        fill: None for always the most; otherwise partitions double from one until their mean share
            of set bits is at most this, or the most is reached.
    """

    most: tuple[int, ...] = (1,)
    fill: float | None = None

    def per_level(self, num_levels: int) -> np.ndarray:
        """Return int32 [L + 1], the most partitions of a node of each prefix length."""
        longest = len(self.most) - 1
        return np.array([1, *(self.most[min(i, longest)] for i in range(num_levels))], np.int32)


UNIONS = {
    "bitmask+bloom": Partitioning(),
    "static-kway": Partitioning((64, 64, 32, 8)),
    "dynamic-kway": Partitioning((32,), fill=0.25),
}
"""The paper's three kinds, with its numbers (section 5)."""


@dataclass(frozen=True)
class UnionMatcher:
    """The rows of all S nodes and what it takes to ask them.

    Attributes:
        name: of the matching mode.
        tables: the rules that rows and requests are made of.
        layout: the bits of a bitmask row.
        shape: the size of one Bloom filter.
        child_offsets: the trie's.
        rows: partitions of every node, each distinct row once.
    """

    name: str
    tables: RuleTables
    layout: BitLayout
    shape: BloomShape
    child_offsets: Tensor
    rows: UnionRows

    def to(self, device: str | torch.device) -> UnionMatcher:
        """Return a copy whose rows are on a device, for nodes on that device."""
        return replace(self, child_offsets=self.child_offsets.to(device), rows=self.rows.to(device))

    def start(self, requests: Sequence[CompiledTargeting]) -> Verdict:
        """Prepare a batch of requests; children are tested when a step asks for them."""
        device = self.child_offsets.device
        masks = self.masks(requests).to(device)
        # A node whose only entry is -1 has the root as its child.
        above_root = torch.tensor([-1, 0], device=device)
        nodes = torch.zeros(len(requests), 1, dtype=torch.int64, device=device)
        root = match_children(nodes, above_root, self.rows, masks, max_children=1)[:, 0, 0] != 0

        def children(nodes: Tensor) -> Tensor:
            return match_children(nodes, self.child_offsets, self.rows, masks)

        return Verdict(root=root, words=None, children=children, how=self.name)

    def masks(self, requests: Sequence[CompiledTargeting]) -> RequestMasks:
        """Return what the requests ask of a row, on the CPU."""
        want = [request_flags(self.tables, self.layout, r.targeting) for r in requests]
        slots = set_attributes(self.tables.schema)
        values = [[r.targeting.values[attribute] for attribute in slots] for r in requests]
        counts = [[-1 if known is None else len(known) for known in row] for row in values]
        counts = np.array(counts, np.int32).reshape(len(requests), len(slots))
        shape = (len(requests), len(slots), max(1, counts.max(initial=0)), self.shape.num_words)
        places = np.zeros(shape, np.int64)
        carried = [value for row in values for known in row for value in known or ()]
        places[np.arange(shape[2]) < counts[..., None]] = bloom_words(carried, self.shape)
        flags = np.array(want, bool).reshape(len(requests), self.layout.num_bits)
        arrays = (pack_bits(flags), places, counts)
        return RequestMasks(*(torch.from_numpy(array) for array in arrays))


def set_attributes(schema: Schema) -> list[int]:
    """Return the positions of the set attributes, in the order of their Bloom filters in a row."""
    return [i for i, attribute in enumerate(schema.attributes) if attribute.kind == "set"]


def build_unions(
    name: str,
    tables: RuleTables,
    trie: Trie,
    sid_ad_offsets: Tensor,
    ad_signatures: Tensor,
    shape: BloomShape,
    partitioning: Partitioning,
    workers: int = 1,
) -> UnionMatcher:
    """Build the rows of all nodes from the ads' rules (equations 4 and 9).

    Args:
        name: of the matching mode.
        tables: the dictionaries of rules.
        trie: the SIDs' prefixes.
        sid_ad_offsets: int32 or int64 [N + 1], the ads of each SID, at least one.
        ad_signatures: int32 [A], rows of `tables.signatures`.
        shape: the size of one Bloom filter.
        partitioning: how many unions a node has.
        workers: threads; the result does not depend on it.
    """
    layout = bit_layout(tables)
    offsets, *arrays = _native.build_unions(
        [_attribute(tables, layout, shape, a) for a in range(len(tables.rules))],
        layout.num_bits,
        shape.num_bits,
        shape.num_hashes,
        tables.signatures.numpy(),
        ad_signatures.numpy(),
        sid_ad_offsets.numpy(),
        trie.level_offsets.numpy(),
        trie.child_offsets.numpy(),
        partitioning.per_level(trie.num_levels),
        partitioning.fill,
        workers,
    )
    if offsets is not None and offsets[-1] < 2**31:
        offsets = offsets.astype(np.int32)
    others = [layout.other_bit(attribute) for attribute in set_attributes(tables.schema)]
    rows = UnionRows(
        None if offsets is None else torch.from_numpy(offsets),
        *map(torch.from_numpy, arrays),
        torch.tensor(others, dtype=torch.int64),
    )
    return UnionMatcher(name, tables, layout, shape, trie.child_offsets, rows)


def _attribute(tables: RuleTables, layout: BitLayout, shape: BloomShape, attribute: int) -> tuple:
    """Return what cpp/rule_rows.h reads of an attribute."""
    rules = tables.rules[attribute]
    first, last = layout.offsets[attribute : attribute + 2].tolist()
    where = (first, last - first)
    if isinstance(rules, RangeRules):
        return (*where, *range_intervals(rules, layout.cuts[attribute]))
    include = (rules.include_offsets.numpy(), rules.include_values.numpy())
    if tables.schema.attributes[attribute].kind == "set":
        return (*where, *include, _hashes(rules.values))
    return (*where, *include, rules.exclude_offsets.numpy(), rules.exclude_values.numpy())


def _hashes(values: TextTable) -> np.ndarray:
    """Return int64 [V], the xxh64 of each value by its number."""
    hashes = np.empty(len(values), np.int64)
    hashes[values.numbers.numpy()] = values.hashes.numpy()
    return hashes
