"""The filter from words equals the filter from rules."""

import numpy as np
import torch
from harness import build, examples
from hypothesis import given
from hypothesis import strategies as st
from strategies import cases

from grace.index.batch import Batch
from grace.index.eligible import eligible_ads
from grace.index.exact import ExactMatcher


@given(case=cases(max_ads=300, num_requests=17), seed=st.integers(0, 2**32), wide=st.booleans())
@examples(2)
def test_it_equals_the_filter_that_reads_rules(case, seed, wide):
    rng = np.random.default_rng(seed)
    index = build(case)
    data, state = index.data, index.ad_state
    state.numpy()[:] = rng.choice([0, 0, 0, 1], index.num_ads)
    matcher = ExactMatcher(
        data.tables, data.trie, data.sid_ad_offsets, data.ad_signatures, state, workers=1
    )
    requests = [index.compile(r["attributes"], r["at"]) for r in case.requests]
    words = matcher.signature_words(Batch.of(requests, len(data.tables.rules)))
    sids = rng.integers(-1, index.num_sids, (len(requests), int(rng.integers(0, 40))))
    offsets = data.sid_ad_offsets.to(torch.int64 if wide else torch.int32)
    live = torch.where(state == 0, data.ad_signatures, -1)
    for ads in ((data.ad_signatures, state), (live, None)):
        found = eligible_ads(torch.from_numpy(sids), words, *ads, offsets)
        for b, request in enumerate(requests):
            chosen = np.flatnonzero(sids[b] >= 0)
            want = index.expand(sids[b, chosen], request)
            part = slice(*found.bounds[b : b + 2].tolist())
            assert found.positions[part].tolist() == want.positions.tolist()
            assert found.rows[part].tolist() == chosen[want.rows].tolist()
            assert found.num_expanded[b] == want.num_expanded
            assert found.num_eligible[b] == len(want.positions)
