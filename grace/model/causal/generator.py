"""The causal model as retrieval runs it: both heads as one distribution over SIDs, code by code."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor, nn

from grace.model.causal.features import ItemFeatures
from grace.model.causal.module import Causal


@dataclasses.dataclass
class CausalBuffers:
    """What the decode steps of one batch share.

    Attributes:
        hidden: `[B, model_dim]`, of the newest item.
        prefix_vectors: per level 0..L, `[prefixes, model_dim]`.
        weights: per level 0..L, float64 `[B, prefixes]`: the log-probability of every prefix by the
            dense head; empty where that has no share in the score.
        leads: int64 `[B, M, V]`, the prefix to which each code led after each beam; 0 for none.
    """

    hidden: Tensor
    prefix_vectors: list[Tensor]
    weights: list[Tensor]
    leads: Tensor


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
        hidden = model.encode([history], vectors).view(*history.shape, -1)
        hidden = hidden[torch.arange(len(hidden), device=hidden.device), (lengths - 1).clamp_min(0)]
        # Without a history there is nothing to go by: every item is as likely.
        someone = lengths[:, None] > 0
        hidden = torch.where(someone, hidden, 0)
        weights = []
        if self.config.dense_score:
            logits = model.item_logits(hidden, vectors)
            if self.config.exclude_history:
                past = torch.where(history >= 0, history, history[:, :1])
                logits = torch.where(someone, logits.scatter(1, past.clamp_min(0), -torch.inf), 0)
            weights = model.tree.weights(logits)
        root = torch.zeros(len(hidden), 1, 1, dtype=torch.int64, device=hidden.device)
        return CausalBuffers(hidden, model.tree.vectors(vectors), weights, root)

    @torch.inference_mode()
    def decode(
        self, buffers: CausalBuffers, parents: Tensor | None, tokens: Tensor | None, t: int
    ) -> tuple[Tensor, Tensor]:
        """Score the codes of level t for every beam; arguments as of `EncoderDecoder.decode`.

        Returns:
            float32 `[B, M, V]`, -inf for codes that lead to no item, and float64 `[B, M]`. Without
            a dense share they are logits and their log-sum-exp. With one they are the sum of both
            heads' log-probabilities, and 0: a weighted product of two distributions, which is not
            normalised again.
        """
        if parents is None:
            prefix = buffers.leads[..., 0]
        else:
            taken = parents[..., None].expand(-1, -1, buffers.leads.shape[2])
            prefix = buffers.leads.gather(1, taken).gather(2, tokens[..., None])[..., 0]
        children, codes, inside = self.model.tree.continued(prefix, t)
        share, scores, normaliser = self.config.dense_score, 0.0, 0.0
        if share < 1:
            hidden = buffers.hidden[:, None].expand(-1, prefix.shape[1], -1)
            logits = self.model.code_logits(hidden, prefix, t, buffers.prefix_vectors)
            scores = logits.double()
            normaliser = scores.logsumexp(2)
        if share:
            before = buffers.weights[t].gather(1, prefix)[..., None]
            after = buffers.weights[t + 1].gather(1, children.flatten(1)).view_as(children)
            gained = torch.where(after > -torch.inf, after - before, -torch.inf)
            if share < 1:
                gained = share * gained + (1 - share) * (scores - normaliser[..., None])
            scores, normaliser = gained, gained.new_zeros(prefix.shape)
        # What is no child goes to one more column, which is cut off.
        columns = self.config.vocab_size
        column = torch.where(inside, codes, columns)
        shape = (*prefix.shape, columns + 1)
        scores = scores.new_full(shape, -torch.inf).scatter(2, column, scores)[..., :columns]
        buffers.leads = children.new_zeros(shape).scatter(2, column, children)[..., :columns]
        return scores.float(), normaliser
