"""The exact matcher: one word per trie node, a bit per request, decided from the ads' own rules."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from grace.index.batch import Batch
from grace.index.buffers import Buffers, Memos
from grace.index.exact_cost import NS_PER_DECIDED, NS_PER_SCANNED_AD, Sizes
from grace.index.rules import CompiledTargeting, RangeRules, RuleTables, ValueRules
from grace.index.trie import Trie
from grace.index.verdict import Verdict
from grace.kernels.leaf_words import leaf_words
from grace.kernels.rule_words import interval_words, value_words
from grace.kernels.segment_or import segment_or
from grace.kernels.signature_words import signature_words
from grace.kernels.visited_children import BatchVisits, Visits
from grace.kernels.visited_children.reference import visited_children_reference

SAMPLE = 1024  # ads looked at to guess how many a request accepts


class ExactMatcher:
    """Says which prefixes have an ad below that accepts a request, on the CPU.

    Args:
        tables: the dictionaries of rules.
        trie: the SIDs' prefixes.
        sid_ad_offsets: int32 or int64 [N + 1], the ads of each SID.
        ad_signatures: int32 [num_ads].
        ad_state: uint8 [num_ads], 0 where an ad may be shown; the caller changes it in place, and
            a batch sees every change made before it began.
        workers: threads; by default as many as torch uses.
    """

    def __init__(
        self,
        tables: RuleTables,
        trie: Trie,
        sid_ad_offsets: Tensor,
        ad_signatures: Tensor,
        ad_state: Tensor,
        workers: int | None = None,
    ):
        self.tables = tables
        self.trie = trie
        self.sid_ad_offsets = sid_ad_offsets
        self.ad_signatures = ad_signatures
        self.ad_state = ad_state
        self._options = {"workers": workers}
        self._windows = tables.windows.T.contiguous()
        sizes = [*(rules.num_rules for rules in tables.rules), len(tables.windows)]
        self._rule_buffers = [Buffers(size) for size in sizes]
        self._signature_buffers = Buffers(len(tables.signatures))
        self._node_buffers = Buffers(trie.num_nodes)
        listed = [
            len(rules.include_values) + len(rules.exclude_values)
            for rules in tables.rules
            if not isinstance(rules, RangeRules)
        ]
        self._sizes = Sizes(
            sum(listed), len(tables.signatures), len(ad_signatures), trie.level_sizes
        )
        self._memos = Memos(len(tables.signatures))
        self._sample = np.linspace(0, len(ad_signatures) - 1, SAMPLE).astype(np.int64)

    @cached_property
    def _visits(self) -> Visits:
        tables, trie = self.tables, self.trie
        return Visits(
            trie.level_offsets, trie.child_offsets, self.sid_ad_offsets, self.ad_signatures,
            self.ad_state, tables.signatures, tables.windows,
            [_arrays(rules) for rules in tables.rules],
        )  # fmt: skip

    def start(
        self, requests: Sequence[CompiledTargeting], visits: Sequence[int] | None = None
    ) -> Verdict:
        """Decide every prefix for at most 32 requests, or prepare to decide those visited.

        Args:
            requests: the batch.
            visits: how many distinct children each step will look at, see
                `exact_cost.visited_children`; None to decide every prefix.

        Raises:
            ValueError: if there are more than 32 requests.
        """
        batch = Batch.of(requests, len(self.tables.rules))
        lazy = None if visits is None else self._lazy_form(batch, visits)
        return self.every_node(batch) if lazy is None else self._visited_nodes(batch, lazy)

    def every_node(self, batch: Batch) -> Verdict:
        """Decide every prefix now."""
        words = self.node_words(self.signature_words(batch))
        root = (int(words[0]) >> torch.arange(batch.num_requests) & 1) != 0
        return Verdict(root, words, None, "exact, every node")

    def _lazy_form(self, batch: Batch, visits: Sequence[int]) -> BatchVisits | None:
        """The batch's visits, or None where deciding every node is cheaper."""
        eager_ns = self._sizes.every_node_ns
        if self._sizes.visited_ns(visits, rarest=1.0) >= eager_ns:
            return None
        lazy = self.visits(batch, budget=int(eager_ns / (NS_PER_SCANNED_AD + NS_PER_DECIDED)))
        accepted, _ = lazy.count(self._sample)
        # Of all ads, not of live ones: a scan passes over the others too.
        rarest = accepted[: batch.num_requests].min(initial=SAMPLE) / SAMPLE
        # A request that no sampled ad accepts may accept none at all: the scans would be long.
        if rarest == 0 or self._sizes.visited_ns(visits, rarest) >= eager_ns:
            return None
        return lazy

    def visits(self, batch: Batch, budget: int = 2**62) -> BatchVisits:
        """The batch in the form that decides children on demand, looking at `budget` ads."""
        return self._visits.begin(
            batch.everyone, batch.known, batch.numbers, batch.at,
            [self._carried(batch, a) for a in range(len(self.tables.rules))],
            *self._memos.lend(), budget,
        )  # fmt: skip

    def _visited_nodes(self, batch: Batch, lazy: BatchVisits) -> Verdict:
        # Every request has been seen to be accepted by some live ad.
        root = torch.ones(batch.num_requests, dtype=torch.bool)
        given_up: list[Tensor] = []  # the words of all nodes, once the sample proved misleading

        def children(nodes: Tensor) -> Tensor:
            found = None if given_up else lazy.children(nodes, **self._options)
            if found is not None:
                return found
            if not given_up:
                given_up.append(self.node_words(self.signature_words(batch)))
            return visited_children_reference(nodes, self.trie.child_offsets, given_up[0])

        return Verdict(root, None, children, "exact, visited nodes")

    def signature_words(self, batch: Batch) -> Tensor:
        """Return int32 [G], bit b set where the signature accepts request b."""
        windows = interval_words(
            *self._windows, torch.from_numpy(batch.at), False, batch.everyone,
            out=self._rule_buffers[-1].lend(), **self._options,
        )  # fmt: skip
        tables = [self._rule_words(batch, a) for a in range(len(self.tables.rules))]
        return signature_words(
            self.tables.signatures.unbind(1), [*tables, windows],
            out=self._signature_buffers.lend(), **self._options,
        )  # fmt: skip

    def _rule_words(self, batch: Batch, attribute: int) -> Tensor:
        rules, out = self.tables.rules[attribute], self._rule_buffers[attribute].lend()
        if isinstance(rules, RangeRules):
            numbers = torch.from_numpy(batch.numbers[attribute])
            return interval_words(
                rules.min, rules.max, numbers, True, batch.everyone, out, **self._options
            )
        return value_words(
            *_arrays(rules), torch.from_numpy(self._carried(batch, attribute)),
            int(batch.known[attribute]), batch.everyone, out, **self._options,
        )  # fmt: skip

    def _carried(self, batch: Batch, attribute: int) -> np.ndarray:
        """int32 [V], the requests that carry each value; empty for a range."""
        rules = self.tables.rules[attribute]
        carried = np.zeros(0 if isinstance(rules, RangeRules) else len(rules.values), np.int32)
        values, words = batch.carried[attribute]
        carried[values] = words
        return carried

    def node_words(self, signatures: Tensor, out: Tensor | None = None) -> Tensor:
        """Return int32 [S], each node's word, from the signatures' int32 [G]."""
        words = self._node_buffers.lend() if out is None else out
        bounds = self.trie.level_offsets.tolist()
        leaf_words(
            signatures, self.ad_signatures, self.ad_state, self.sid_ad_offsets,
            out=words[bounds[-2] :], **self._options,
        )  # fmt: skip
        for first, last in reversed(list(pairwise(bounds[:-1]))):
            # Entry e of the trie leads to node e + 1.
            offsets = self.trie.child_offsets[first : last + 1]
            segment_or(words, offsets, 1, out=words[first:last], **self._options)
        return words


def _arrays(rules: RangeRules | ValueRules) -> tuple[Tensor, ...]:
    if isinstance(rules, RangeRules):
        return rules.min, rules.max
    return (
        rules.include_offsets, rules.include_values, rules.exclude_offsets, rules.exclude_values,
    )  # fmt: skip
