"""The exact matcher: one word per trie node, a bit per request, decided from the ads' own rules."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from grace.index.bits import pack_requests, segment_or
from grace.index.rules import CompiledTargeting, RangeRules, RuleTables, ValueRules
from grace.index.trie import Trie


def exact_words(
    tables: RuleTables,
    trie: Trie,
    sid_ad_offsets: Tensor,
    ad_signatures: Tensor,
    ad_state: Tensor,
    requests: Sequence[CompiledTargeting],
) -> Tensor:
    """Say for every prefix and request whether an ad below the prefix accepts the request.

    Args:
        tables: the dictionaries of rules.
        trie: the SIDs' prefixes.
        sid_ad_offsets: int64 [N + 1], the ads of each SID.
        ad_signatures: int32 [num_ads].
        ad_state: uint8 [num_ads], nonzero where an ad may not be shown now.
        requests: B of them, at most 32.

    Returns:
        int32 [S]; bit b of word n is set if and only if some ad under node n accepts request b.
    """
    signatures = _signature_words(tables, requests)
    ads = torch.where(ad_state == 0, signatures[ad_signatures], 0)
    words = torch.empty(trie.num_nodes, dtype=torch.int32)
    bounds = trie.level_offsets.tolist()
    words[bounds[-2] :] = segment_or(ads, sid_ad_offsets)
    for level in range(trie.num_levels - 1, -1, -1):
        first, last = bounds[level], bounds[level + 1]
        # Entry e leads to node e + 1, and the level below begins at node `last`.
        starts = trie.child_offsets[first : last + 1] + 1 - last
        words[first:last] = segment_or(words[last : bounds[level + 2]], starts)
    return words


def _signature_words(tables: RuleTables, requests: Sequence[CompiledTargeting]) -> Tensor:
    everyone = pack_requests(torch.ones(1, len(requests), dtype=torch.bool))
    at = torch.tensor([request.targeting.at for request in requests])
    start, end = tables.windows[:, :1], tables.windows[:, 1:]
    words = pack_requests((start <= at) & (at < end))[tables.signatures[:, -1]]
    for attribute, rules in enumerate(tables.rules):
        if isinstance(rules, RangeRules):
            passed = _range_words(rules, attribute, requests)
        else:
            passed = _value_words(rules, attribute, requests)
        passed[0] = everyone  # rule 0 asks nothing
        words &= passed[tables.signatures[:, attribute]]
    return words


def _range_words(
    rules: RangeRules, attribute: int, requests: Sequence[CompiledTargeting]
) -> Tensor:
    # An unknown number is NaN, which no comparison accepts.
    numbers = torch.from_numpy(np.array([request.numbers[attribute] for request in requests]))
    return pack_requests((rules.min[:, None] <= numbers) & (numbers <= rules.max[:, None]))


def _value_words(
    rules: ValueRules, attribute: int, requests: Sequence[CompiledTargeting]
) -> Tensor:
    carried = torch.zeros(len(rules.values), dtype=torch.int32)  # value -> requests that carry it
    known = torch.tensor([[bool(request.known[attribute]) for request in requests]])
    for b, request in enumerate(requests):
        bit = pack_requests(torch.arange(len(requests))[None] == b)
        carried[torch.from_numpy(request.value_ids[attribute]).long()] |= bit
    included = segment_or(carried[rules.include_values], rules.include_offsets)
    excluded = segment_or(carried[rules.exclude_values], rules.exclude_offsets)
    everyone = torch.full_like(included, -1)
    return pack_requests(known) & torch.where(rules.has_include, included, everyone) & ~excluded
