"""GRACE's matcher (sections 3.2, 3.4): subtree unions of bitmasks and Bloom filters, rows shared.

A union forgets which ad set which bit, so a row may pass without one ad that accepts (equations 6
and 7); it never fails while there is such an ad.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from grace.catalog import Schema
from grace.index.bitmask import BitLayout, bit_layout, range_cuts, request_flags, rule_flags
from grace.index.bits import distinct_rows, or_up_the_trie, pack_bits, pack_requests
from grace.index.bloom import (
    BloomShape,
    bloom_bits,
    bloom_columns,
    bloom_flags,
    contains_any,
)
from grace.index.rules import CompiledTargeting, RangeRules, RuleTables
from grace.index.trie import Trie


@dataclass(frozen=True)
class UnionMatcher:
    """Packed rows of all S nodes, each distinct row once.

    Attributes:
        layout: the bits of a bitmask row.
        shape: the size of one Bloom filter.
        bitmask_rows: int64 [R, W].
        bitmask_index: int32 [S], the row of each node.
        bloom_rows: int64 [R', num_set_attributes * w / 64], a filter per set attribute.
        bloom_index: int32 [S].
    """

    layout: BitLayout
    shape: BloomShape
    bitmask_rows: Tensor
    bitmask_index: Tensor
    bloom_rows: Tensor
    bloom_index: Tensor

    def words(self, tables: RuleTables, requests: Sequence[CompiledTargeting]) -> Tensor:
        """Return int32 [S]: bit b of word n is clear only if no ad under n accepts request b.

        Every distinct row is tested once, then each node looks its two rows up. Windows and pauses
        are no part of a row, so that they can change without a rebuild.
        """
        wanted = [request_flags(tables, self.layout, r.targeting) for r in requests]
        masks = torch.from_numpy(pack_bits(np.stack(wanted)))
        passed = ((self.bitmask_rows[:, None] & masks) == masks).all(2)
        words = pack_requests(passed)[self.bitmask_index]
        for slot, attribute in enumerate(set_attributes(tables.schema)):
            include_free = self._bit(self.layout.other_bit(attribute))
            words &= self._bloom_words(slot, attribute, requests) | torch.where(
                include_free, pack_requests(torch.ones(1, len(requests), dtype=torch.bool)), 0
            )
        return words

    def _bit(self, position: int) -> Tensor:
        """bool [S], one bit of each node's bitmask row."""
        column = self.bitmask_rows[:, position // 64] >> (position % 64) & 1
        return (column != 0)[self.bitmask_index]

    def _bloom_words(
        self, slot: int, attribute: int, requests: Sequence[CompiledTargeting]
    ) -> Tensor:
        num_rows = len(self.bloom_rows)
        passed = np.ones((num_rows, len(requests)), bool)
        for b, request in enumerate(requests):
            values = request.targeting.values[attribute]
            if values is not None:  # the bitmask has decided the unknown ones
                bits = [bloom_bits(v, self.shape.num_bits, self.shape.num_hashes) for v in values]
                passed[:, b] = contains_any(self._bloom_columns[slot], np.array(bits), num_rows)
        return pack_requests(torch.from_numpy(passed))[self.bloom_index]

    @cached_property
    def _bloom_columns(self) -> list[np.ndarray]:
        """Per set attribute, its filters turned on their side."""
        width = self.shape.num_words
        parts = range(0, self.bloom_rows.shape[1], width)
        rows = self.bloom_rows.numpy()
        return [
            bloom_columns(np.ascontiguousarray(rows[:, first : first + width]), self.shape.num_bits)
            for first in parts
        ]


def set_attributes(schema: Schema) -> list[int]:
    """Return the positions of the set attributes, in the order of their Bloom filters in a row."""
    return [i for i, attribute in enumerate(schema.attributes) if attribute.kind == "set"]


def build_union_matcher(
    tables: RuleTables,
    trie: Trie,
    sid_ad_offsets: np.ndarray,
    ad_signatures: np.ndarray,
    shape: BloomShape,
) -> UnionMatcher:
    """Build the rows of all nodes from the ads' rules (equations 4 and 9)."""
    cuts = [range_cuts(r) if isinstance(r, RangeRules) else np.empty(0) for r in tables.rules]
    layout = bit_layout(tables, cuts)
    bitmasks = _signature_rows(
        tables, [rule_flags(tables, layout, a) for a in range(len(tables.rules))]
    )
    blooms = _signature_rows(
        tables, [_rule_blooms(tables, a, shape) for a in set_attributes(tables.schema)],
        set_attributes(tables.schema),
    )  # fmt: skip
    tables_and_indices = []
    for rows in (bitmasks, blooms):
        leaves = np.bitwise_or.reduceat(rows[ad_signatures], sid_ad_offsets[:-1], axis=0)
        nodes = or_up_the_trie(
            leaves, trie.level_offsets.numpy(), trie.child_offsets.numpy().astype(np.int64)
        )
        tables_and_indices += map(torch.from_numpy, distinct_rows(nodes))
    return UnionMatcher(layout, shape, *tables_and_indices)


def _signature_rows(
    tables: RuleTables, flags: list[np.ndarray], attributes: Sequence[int] | None = None
) -> np.ndarray:
    """Return int64 [num_signatures, W], each signature's segments side by side, packed."""
    signatures = tables.signatures.numpy()
    columns = range(len(flags)) if attributes is None else attributes
    segments = [flag[signatures[:, c]] for flag, c in zip(flags, columns, strict=True)]
    return pack_bits(np.concatenate([np.zeros((len(signatures), 0), bool), *segments], axis=1))


def _rule_blooms(tables: RuleTables, attribute: int, shape: BloomShape) -> np.ndarray:
    """Return bool [R, w], the filter of each rule's included values."""
    rules = tables.rules[attribute]
    values = bloom_flags([rules.values[i] for i in range(len(rules.values))], shape)
    flags = np.zeros((rules.num_rules, shape.num_bits), bool)
    owner = np.repeat(np.arange(len(flags)), np.diff(rules.include_offsets.numpy()))
    np.logical_or.at(flags, owner, values[rules.include_values.numpy()])
    return flags
