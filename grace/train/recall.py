"""Validation: loss by teacher forcing, recall by a small beam search inside the catalogue."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np
import torch

from grace.decode import CoreGenerator, beam_search, full_plan
from grace.decode.generator import Prefill
from grace.model import EncoderDecoder
from grace.train.examples import ExampleSet
from grace.train.loss import sid_loss

if TYPE_CHECKING:
    from grace.index import Index


@dataclasses.dataclass(frozen=True, kw_only=True)
class Scores:
    """Validation scores.

    Attributes:
        loss: mean cross-entropy of a token of the held-out SIDs, in nats.
        recall: share of rows whose held-out ad is among the first k; nothing is filtered, neither
            seen ads nor ads that the user may not see.
    """

    loss: float
    recall: float


def validate(
    model: EncoderDecoder,
    examples: ExampleSet,
    index: Index,
    k: int,
    beam_width: int,
    batch_size: int,
    device: str,
) -> Scores:
    """Measure a model on rows that have a target each.

    Ads rank by (SID score, SID, place within the SID), as retrieval orders them, among the
    `beam_width` SIDs that the search keeps.
    """
    model.eval()
    generator = CoreGenerator(model, index, device)
    plan = full_plan(index.num_levels, beam_width).limited(index.level_sizes)
    max_beams = max(*plan.widths, plan.num_sids)  # no more than the trie is wide
    drawn = examples.draw(np.random.default_rng(0), cuts_per_row=1, num_targets=1)
    loss, hits = 0.0, 0
    for first in range(0, len(drawn), batch_size):
        chosen = slice(first, first + batch_size)
        inputs, sids = examples.inputs(drawn, chosen)
        inputs = {name: tensor.to(device) for name, tensor in inputs.items()}
        with torch.inference_mode():
            loss += sid_loss(model(inputs, sids.to(device)), sids.to(device)).item()
        prefill = Prefill(model.prefill(inputs, max_beams=max_beams), [0] * len(sids))
        beams = beam_search(generator, prefill, index.trie, None, plan, len(sids))
        found = beams.nodes.numpy() - index.trie.first_leaf
        hits += _count_hits(found, drawn.ads[chosen, 0], index, k)
    return Scores(loss=loss / len(drawn), recall=hits / len(drawn))


def _count_hits(found: np.ndarray, targets: np.ndarray, index: Index, k: int) -> int:
    """Count requests whose target ad is among the first k ads of the SIDs found.

    Args:
        found: `[B, K]` SID indexes, best first; a dead slot is negative.
        targets: `[B]` ad positions.
        index: its ads are sorted by SID, so a SID's ads are a range of positions.
        k: how many ads count.
    """
    hits = 0
    for sids, target in zip(found, targets, strict=True):
        place = np.flatnonzero(sids == index.ad_sid[target])
        if len(place):
            before = (index.sid_ads(int(sid)) for sid in sids[: place[0]])
            rank = sum(last - first for first, last in before)
            rank += int(target) - index.sid_ads(int(index.ad_sid[target]))[0]
            hits += rank < k
    return hits
