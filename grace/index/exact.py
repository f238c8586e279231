"""The exact matcher: one word per trie node, a bit per request, decided from the ads' own rules."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from grace.index.batch import Batch
from grace.index.buffers import Buffers
from grace.index.rules import CompiledTargeting, RangeRules, RuleTables
from grace.index.trie import Trie
from grace.index.verdict import Verdict
from grace.kernels.leaf_words import leaf_words
from grace.kernels.rule_words import interval_words, value_words
from grace.kernels.segment_or import segment_or
from grace.kernels.signature_words import signature_words


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

    def start(self, requests: Sequence[CompiledTargeting]) -> Verdict:
        """Decide every prefix for at most 32 requests.

        Raises:
            ValueError: if there are more.
        """
        batch = Batch.of(requests, len(self.tables.rules))
        words = self.node_words(self.signature_words(batch))
        root = (int(words[0]) >> torch.arange(batch.num_requests) & 1) != 0
        return Verdict(root, words, None, "exact, every node")

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
        carried = np.zeros(len(rules.values), np.int32)
        values, words = batch.carried[attribute]
        carried[values] = words
        return value_words(
            rules.include_offsets, rules.include_values, rules.exclude_offsets,
            rules.exclude_values, torch.from_numpy(carried), int(batch.known[attribute]),
            batch.everyone, out, **self._options,
        )  # fmt: skip

    def node_words(self, signatures: Tensor) -> Tensor:
        """Return int32 [S], each node's word, from the signatures' int32 [G]."""
        words = self._node_buffers.lend()
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
