"""Selection without a catalogue against sorting every prefix."""

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from grace.decode.free_select import free_select, prefix_ranks, stable_topk


@given(st.integers(0, 2**32), st.integers(1, 60), st.data())
def test_stable_topk_takes_the_first_of_equal_values(seed, size, data):
    k = data.draw(st.integers(1, size))
    rng = np.random.default_rng(seed)
    values = rng.choice([-np.inf, 0.0, 1.0, 2.0], (3, size)).astype(np.float32)
    positions, best = stable_topk(torch.from_numpy(values), k)
    for row in range(3):
        wanted = sorted(range(size), key=lambda i: (-values[row, i], i))[:k]
        assert positions[row].tolist() == wanted
        assert best[row].tolist() == values[row, wanted].tolist()


@given(st.integers(0, 2**32), st.integers(1, 6), st.integers(1, 5), st.data())
def test_ties_follow_the_order_of_prefixes(seed, beams, vocab, data):
    width = data.draw(st.integers(1, beams * vocab))
    rng = np.random.default_rng(seed)
    logits = torch.from_numpy(rng.choice([-np.inf, 0.0, 1.0], (2, beams, vocab)).astype("f4"))
    logsumexp = torch.logsumexp(logits.double(), -1)
    scores = torch.from_numpy(rng.choice([-np.inf, 0.0, 1.0], (2, beams)).astype("f4"))
    ranks = torch.stack([torch.from_numpy(rng.permutation(beams)) for _ in range(2)])
    parents, tokens, best = free_select(logits, logsumexp, scores, ranks, width)
    next_ranks = prefix_ranks(ranks.gather(1, parents), tokens, best > -torch.inf, vocab)
    for b in range(2):
        candidates = []
        for m in range(beams):
            for token in range(vocab):
                step = (logits[b, m, token].double() - logsumexp[b, m]).float()
                total = float(scores[b, m] + step)
                if total > -np.inf:
                    candidates.append((-total, int(ranks[b, m]), token, m))
        wanted = sorted(candidates)[:width]
        alive = len(wanted)
        assert parents[b, :alive].tolist() == [m for *_, m in wanted]
        assert tokens[b, :alive].tolist() == [token for _, _, token, _ in wanted]
        assert best[b, :alive].tolist() == [-score for score, *_ in wanted]
        assert (best[b, alive:] == -torch.inf).all()
        prefixes = [(rank, token) for _, rank, token, _ in wanted]
        places = [sorted(prefixes).index(prefix) for prefix in prefixes]
        assert next_ranks[b, :alive].tolist() == places
        assert sorted(next_ranks[b].tolist()) == list(range(width))
