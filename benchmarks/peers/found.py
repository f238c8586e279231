"""What a search returns, and whether two searches returned the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from grace.index.trie import Trie
from grace.model.decoder import Decoder

EMPTY = -100
"""Stands for the tokens of a slot of which the search itself says that it holds no SID."""


@dataclass(frozen=True)
class Found:
    """SIDs of B requests, best first.

    Attributes:
        sids: int64 [B, K, L]; EMPTY in a slot that holds none.
        scores: float32 [B, K].
    """

    sids: Tensor
    scores: Tensor

    def by_sid(self, request: int) -> dict[tuple[int, ...], float]:
        """Score of each SID of one request; of one found twice, the better."""
        pairs = zip(self.sids[request].tolist(), self.scores[request].tolist(), strict=True)
        return {tuple(sid): score for sid, score in reversed(list(pairs)) if score > -np.inf}


def count_faults(found: Found, trie: Trie) -> tuple[int, int, int]:
    """(SIDs returned, of those not in the catalogue, of the others returned before), all requests.

    Fillers count as returned, though whoever knows of them can tell them by their scores: -inf in
    STATIC, about -1e9 in `generate`.
    """
    returned = invalid = repeated = 0
    for sids in found.sids.cpu().numpy():
        sids = sids[(sids != EMPTY).any(1)]
        known = trie.find(sids) >= 0
        returned += len(sids)
        invalid += int((~known).sum())
        repeated += int(known.sum()) - len(np.unique(sids[known], axis=0))
    return returned, invalid, repeated


def assert_same(
    name: str,
    found: Found,
    expected: Found,
    cuts: Tensor,
    decoder: Decoder,
    context: Tensor,
    tolerance: float,
) -> None:
    """Assert that a search returned what the reference did.

    Scores of common SIDs are closer than the tolerance. A SID that only one side has is legal if
    one of its prefixes is closer to that step's cut than twice the tolerance: there rounding may
    decide.

    Args:
        name: of the search, for the message.
        found: of the search; no SID twice.
        expected: of the reference.
        cuts: [B, L], score of the last beam that the reference kept after each step.
        decoder: in float32, on the CPU.
        context: float32 [B, T, model_dim], on the CPU.
        tolerance: of a score.
    """
    for request in range(len(expected.sids)):
        ours, theirs = expected.by_sid(request), found.by_sid(request)
        assert len(theirs) == found.sids.shape[1] == len(ours), (name, len(theirs), len(ours))
        common = ours.keys() & theirs.keys()
        worst = max((abs(ours[sid] - theirs[sid]) for sid in common), default=0.0)
        assert worst <= tolerance, f"{name}: scores differ by {worst}"
        scores = found.scores[request]
        assert (scores.diff() <= 0).all(), f"{name}: not best first"
        odd = sorted(ours.keys() ^ theirs.keys())
        if odd:
            prefix_scores = score_prefixes(decoder, context[request], odd)
            near = (prefix_scores - cuts[request]).abs() <= 2 * tolerance
            assert near.any(1).all(), f"{name}: other SIDs than the reference, far from any cut"


@torch.inference_mode()
def score_prefixes(decoder: Decoder, context: Tensor, sids: Sequence[tuple[int, ...]]) -> Tensor:
    """[n, L], scores of all prefixes of one request's SIDs by teacher forcing."""
    tokens = torch.tensor(sids)[None]
    log_probs = decoder(decoder.project_context(context[None]), tokens).float().log_softmax(-1)
    return log_probs.gather(3, tokens[..., None])[0, ..., 0].cumsum(1)


def overlap(found: Found, other: Found) -> tuple[float, float]:
    """(share of SIDs that both found, largest difference of their scores), over all requests."""
    common = total = 0
    difference = 0.0
    for request in range(len(found.sids)):
        ours, theirs = found.by_sid(request), other.by_sid(request)
        both = ours.keys() & theirs.keys()
        common += len(both)
        total += len(ours)
        difference = max([difference, *(abs(ours[sid] - theirs[sid]) for sid in both)])
    return common / total, difference
