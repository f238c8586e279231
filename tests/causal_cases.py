"""The SID decoder of a causal model by brute force, one SID at a time."""

from __future__ import annotations

import torch
from sequence_cases import item_sids
from torch import Tensor

from grace.model.causal import Causal

SIDS = torch.from_numpy(item_sids()).long()
"""`[N, L]`, of the items of `sequence_cases`."""


def sid_log_prob(model: Causal, hidden: Tensor, sid: list[int], vectors: Tensor) -> float:
    """Of a SID by the decoder: at each level a softmax over what may follow the codes before."""
    total = 0.0
    for level, code in enumerate(sid):
        below = (SIDS[:, :level] == torch.tensor(sid[:level])).all(1)
        mean = vectors[below].mean(0) if level else torch.zeros_like(hidden)
        x = hidden + model.prefix_norm(mean + model.levels.weight[level])
        for block in model.decoder:
            x = block(x)
        x = model.decoder_norm(x)
        codes = sorted(set(SIDS[below, level].tolist()))
        logits = [float(vectors[below & (SIDS[:, level] == c)].mean(0) @ x) for c in codes]
        total += float(torch.tensor(logits).log_softmax(0)[codes.index(code)])
    return total
