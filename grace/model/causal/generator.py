"""The causal model as retrieval runs it: both heads as one distribution over SIDs, code by code."""

from __future__ import annotations

import dataclasses

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from grace.kernels.logsumexp import logsumexp
from grace.model.causal.features import ItemFeatures
from grace.model.causal.masses import PrefixMasses
from grace.model.causal.module import Causal


@dataclasses.dataclass
class CausalBuffers:
    """What the decode steps of one batch share.

    Attributes:
        hidden: `[B, model_dim]`, of the newest item.
        masses: per level 0..L, float64 `[B, prefixes]`: the log-probability of every prefix by the
            dense head; empty where it has no share in the score.
        written: `[B, M, model_dim]`, the embeddings of each beam's codes, summed.
        prefixes: int64 `[B, M, V]`, where each code leads: a prefix's number in its level; -1.
    """

    hidden: Tensor
    masses: list[Tensor]
    written: Tensor
    prefixes: Tensor


class CausalGenerator(nn.Module):
    """A tensor-only core (docs/generators.md) over a causal model.

    The dense head is a distribution over items, so it is one over SIDs, too: the probability of a
    prefix is the sum of its items'. The score of a code is a sum of both heads' log-probabilities
    of it given the prefix, by the share `dense_score`; that of a whole SID is thereby exactly the
    same sum of both heads' log-probabilities of the SID.

    Args:
        model: whose weights are used, not copied.

    Attributes:
        config: the model's sizes.
        features: what it reads of requests.
    """

    def __init__(self, model: Causal):
        super().__init__()
        self.model, self.config = model, model.config
        self.masses = PrefixMasses(model.sids)
        self.features = ItemFeatures(model.item_ids.cpu().numpy(), model.config.max_items)

    @torch.inference_mode()
    def prefill(self, inputs: dict[str, Tensor]) -> CausalBuffers:
        """Encode B histories and weigh the prefixes by the dense head.

        Args:
            inputs: `history`, int64 `[B, n]`: item numbers, oldest first, -1 for padding, last.
        """
        model, history = self.model, inputs["history"]
        vectors = model.item_vectors()
        lengths = (history >= 0).sum(1)
        hidden = model.encode(history, vectors)
        hidden = hidden[torch.arange(len(hidden), device=hidden.device), (lengths - 1).clamp_min(0)]
        # Without a history there is nothing to go by: every item is as likely.
        someone = lengths[:, None] > 0
        hidden = torch.where(someone, hidden, 0)
        masses = []
        if self.config.dense_score:
            past = torch.where(history >= 0, history, history[:, :1]).clamp_min(0)
            logits = model.item_logits(hidden, vectors, past)
            masses = self.masses(torch.where(someone, logits, 0))
        written = torch.zeros_like(hidden)[:, None]
        prefixes = torch.zeros(len(hidden), 1, 1, dtype=torch.int64, device=hidden.device)
        return CausalBuffers(hidden, masses, written, prefixes)

    @torch.inference_mode()
    def decode(
        self, buffers: CausalBuffers, parents: Tensor | None, tokens: Tensor | None, t: int
    ) -> tuple[Tensor, Tensor]:
        """Score the codes of level t for every beam.

        Args:
            buffers: of `prefill`; changed in place, so steps come in order, t = 0 first.
            parents: int64 `[B, M]`, the row of the step before that each beam continues; None at
                t = 0, where M is 1.
            tokens: int64 `[B, M]`, the code of level t - 1 of each beam; None at t = 0.
            t: the level, below L.

        Returns:
            float32 `[B, M, V]`, -inf past the level's last code, and float64 `[B, M]`. Without a
            dense share they are logits and their log-sum-exp. With one they are the sum of both
            heads' log-probabilities, -inf for what is no prefix, and 0: a weighted product of two
            distributions, which is not normalised again.
        """
        prefix = None
        if parents is not None:
            width = buffers.written.shape[2]
            written = buffers.written.gather(1, parents[..., None].expand(-1, -1, width))
            start = self.model.starts[t - 1]
            buffers.written = written + self.model.codes(tokens + start)
        share, columns = self.config.dense_score, self.config.vocab_size
        scores, normaliser = None, None
        if share < 1:
            hidden = buffers.hidden[:, None].expand_as(buffers.written)
            logits = self.model.level_logits(hidden, buffers.written, t).float()
            normaliser = logsumexp(logits)
            scores = F.pad(logits, (0, columns - logits.shape[2]), value=-torch.inf)
        if not share:
            return scores, normaliser
        if parents is None:
            prefix = buffers.prefixes[..., 0]
        else:
            taken = parents[..., None].expand(-1, -1, buffers.prefixes.shape[2])
            prefix = buffers.prefixes.gather(1, taken).gather(2, tokens[..., None])[..., 0]
            prefix = prefix.clamp_min(0)  # of dead beams
        dense, buffers.prefixes = self.masses.step(buffers.masses, prefix, t, columns)
        if scores is not None:
            dense = share * dense + (1 - share) * (scores.double() - normaliser[..., None])
        return dense.float(), torch.zeros(dense.shape[:2], dtype=torch.float64, device=dense.device)
