"""Random decode steps for the tests of the constrained selection."""

import numpy as np
import torch

from grace.index.trie import build_trie


def case(seed, batch, beams, vocab, levels, coarse):
    """A random step: a trie, beams at one of its levels (some dead), logits, a verdict."""
    rng = np.random.default_rng(seed)
    sids = np.unique(rng.integers(0, vocab, (rng.integers(1, 2000), levels)), axis=0)
    trie, _ = build_trie(sids.astype(np.int32))
    level = rng.integers(0, levels)
    first, last = trie.level_offsets[level : level + 2].tolist()
    nodes = rng.integers(first, last, (batch, beams))
    for b in range(batch):  # no prefix twice in a request; a surplus beam is dead
        distinct = rng.permutation(np.unique(nodes[b]))
        nodes[b] = np.r_[distinct, np.full(beams - len(distinct), -1)]
    logits = rng.normal(size=(batch, beams, vocab)).astype(np.float32)
    if coarse:
        logits = np.round(logits)
    logits[rng.random(logits.shape) < 0.2] = -np.inf
    logits[rng.random((batch, beams)) < 0.1] = -np.inf
    columns = torch.from_numpy(logits)
    scores = torch.from_numpy(rng.normal(size=(batch, beams)).astype(np.float32))
    if coarse:
        scores = scores.round()
    words = torch.from_numpy(rng.integers(-(2**31), 2**31, trie.num_nodes).astype(np.int32))
    return {
        "columns": columns,
        "logsumexp": torch.logsumexp(columns.double(), -1),
        "scores": scores,
        "nodes": torch.from_numpy(nodes),
        "child_offsets": trie.child_offsets,
        "child_tokens": trie.child_tokens,
        "words": words if rng.random() < 0.7 else None,
    }


def assert_same(one, other):
    for name in ("parents", "tokens", "nodes", "scores"):
        assert torch.equal(getattr(one, name), getattr(other, name)), name
