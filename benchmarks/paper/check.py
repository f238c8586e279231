"""What must hold before anything is timed."""

from __future__ import annotations

import numpy as np
import torch

from benchmarks.paper.matchers import Matching
from benchmarks.paper.search import Workload
from grace.kernels.segment_or import segment_or

SAMPLED_SIDS = 100_000


def check_exact(workload: Workload, exact: Matching) -> None:
    """Assert that the exact words of the first batch are what they should be.

    The leaves' words are compared with the last filter, which decides each ad by itself, on up to
    100,000 SIDs for every request; the inner nodes' with the torch reference, all of them; and on a
    GPU every word with the CPU's.
    """
    index, trie = workload.index, workload.index.trie
    compiled = workload.compiled[workload.batches[0]]
    words = exact.start(compiled).words.cpu()
    if exact.on_gpu:
        on_cpu = Matching(index, "exact", "cpu").start(compiled).words
        assert torch.equal(words, on_cpu), "the GPU's words differ from the CPU's"
    bounds = trie.level_offsets.tolist()
    for level in range(trie.num_levels):
        first, last = bounds[level : level + 2]
        wanted = segment_or(words, trie.child_offsets[first : last + 1], 1, backend="reference")
        assert torch.equal(words[first:last], wanted), f"level {level}: not the OR over children"
    sids = np.linspace(0, index.num_sids - 1, min(SAMPLED_SIDS, index.num_sids)).astype(np.int64)
    for b, request in enumerate(compiled):
        accepted = np.zeros(len(sids), bool)
        accepted[index.expand(sids, request).rows] = True
        said = words.numpy()[trie.first_leaf + sids] >> b & 1 != 0
        wrong = np.flatnonzero(accepted != said)
        assert len(wrong) == 0, f"request {b}: wrong word for SID {sids[wrong[0]]}"
