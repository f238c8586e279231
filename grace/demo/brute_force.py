"""Retrieval against brute force: every SID scored by the model, every ad checked by its rules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from grace.decode import BeamPlan
from grace.demo.eligibility import refusal_reason
from grace.index import MATCHERS, Index
from grace.model import EncoderDecoder
from grace.retrieve import Result, Retriever

TOLERANCE = (
    1e-4  # of a score in nats: steps of a cached decoder against one pass over the whole SID
)


def check_against_brute_force(
    index: Index, model: EncoderDecoder, rows: Sequence[Mapping], requests: Sequence[dict]
) -> int:
    """Check that a plan as wide as the trie returns all eligible ads, under every mode.

    The ads must be exactly those whose rows accept the request, each once, their scores within
    `TOLERANCE` of teacher forcing, and in an order that those scores allow. All modes must agree to
    the last bit.

    Args:
        index: built from `rows`.
        model: scores SIDs.
        rows: the demo's catalogue, with SIDs.
        requests: demo requests, without targets.

    Returns:
        How many ads were compared.

    Raises:
        AssertionError: where they differ.
    """
    plan = BeamPlan(index.level_sizes[:-1], index.level_sizes[-1])
    size = model.config.vocab_size
    widest = BeamPlan(tuple(size**t for t in range(index.num_levels)), size**index.num_levels)
    expected = [_eligible_scores(index, model, rows, request) for request in requests]
    answers = {
        mode: Retriever(
            index, model, widest if mode == "off" else plan, matching=mode, batch_size=1
        ).retrieve(requests)
        for mode in MATCHERS
    }
    for mode, results in answers.items():
        for request, result, scores in zip(requests, results, expected, strict=True):
            _check(f"{mode}, request {request['id']}", result, scores)
    for mode, results in answers.items():
        for result, exact in zip(results, answers["exact"], strict=True):
            if result.ads != exact.ads:
                raise AssertionError(f"request {result.id}: {mode} and exact return other ads")
    return sum(map(len, expected))


@torch.inference_mode()
def _eligible_scores(
    index: Index, model: EncoderDecoder, rows: Sequence[Mapping], request: dict
) -> dict[int, float]:
    """Return ad id → score of every ad that the request may see."""
    seen = [row for row in rows if refusal_reason(row, request) is None]
    inputs, _ = model.features.encode([request["features"]], index)
    sids = torch.tensor([row["sid"] for row in rows])
    log_probs = model(inputs, sids[None])[0].double().log_softmax(-1)
    scores = log_probs.gather(-1, sids[..., None]).sum((1, 2)).tolist()
    by_ad = {row["ad_id"]: score for row, score in zip(rows, scores, strict=True)}
    return {row["ad_id"]: by_ad[row["ad_id"]] for row in seen}


def _check(where: str, result: Result, scores: Mapping[int, float]) -> None:
    returned = [ad.ad_id for ad in result.ads]
    if sorted(returned) != sorted(scores):
        raise AssertionError(
            f"{where}: {len(returned)} ads are not the {len(scores)} eligible ones"
        )
    best = float("inf")
    for ad in result.ads:
        if abs(ad.score - scores[ad.ad_id]) > TOLERANCE:
            raise AssertionError(
                f"{where}: ad {ad.ad_id} scores {ad.score}, not {scores[ad.ad_id]}"
            )
        if scores[ad.ad_id] > best + TOLERANCE:
            raise AssertionError(f"{where}: ad {ad.ad_id} comes too late")
        best = min(best, scores[ad.ad_id])
